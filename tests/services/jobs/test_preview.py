"""Previews state what an action then does, in a bounded number of statements."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from chatmemory import services
from chatmemory.errors import BadInput
from chatmemory.models import JobItem, Session, Turn
from chatmemory.services import SERVER
from chatmemory.services.jobs import preview
from chatmemory.services.jobs.actions import ACTIONS
from chatmemory.services.jobs.preview import preview_sessions, preview_total, skip_codes
from tests.factories import BY
from tests.services.jobs.ordering import act, make_talks

pytestmark = [pytest.mark.django_db, pytest.mark.database]

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
PARAMS = {"trim": {"keep_last": 2}, "tag": {"tag": "spam"}, "untag": {"tag": "spam"}}


def make_each_state():
    """Store a session in each state, and one that is idle."""
    talks = make_talks(9)
    for talk, columns in zip(
        talks,
        (
            {},
            {"held_at": LONG_AGO},
            {"archived_at": LONG_AGO},
            {"expires_at": LONG_AGO},
            {"waiting": 0},
        ),
        strict=False,
    ):
        Session.objects.filter(pk=talk.pk).update(**columns)
    at = {"scope": SERVER, "by": BY}
    services.purge_session(session_key="talk-5", reason="", **at)
    services.trim_session(session_key="talk-6", keep_last=2, reason="", **at)
    services.tag_session(session_key="talk-7", tag="spam", reason="", **at)
    services.admit_turn(session_key="talk-8", client_id="c1", content="and?", owner="me", **at)
    Turn.objects.update(partial="so f", started_at=timezone.now())
    return list(Session.objects.order_by("pk"))


def preview_of(action, sessions, params=None):
    return preview_sessions(action=action, sessions=sessions, params=params or {})


@pytest.mark.parametrize("is_stuck", [False, True])
@pytest.mark.parametrize("action", ACTIONS)
def test_a_preview_states_what_the_action_does(action, is_stuck):
    sessions = make_each_state()
    if is_stuck:
        Turn.objects.update(lease_until=timezone.now() - timedelta(minutes=1))
    params = PARAMS.get(action, {})
    previews = preview_of(action, sessions, params)
    total = preview_total(action=action, sessions=Session.objects.all(), params=params)
    job = act(action, **params)
    items = JobItem.objects.filter(job=job).order_by("session_pk")
    assert {item.session_pk: item.messages for item in items if item.outcome == "done"} == {
        pk: shown.messages for pk, shown in previews.items() if not shown.skipped
    }
    assert total.selected == len(sessions)
    assert not total.is_more
    if action != "trim":
        assert total.sessions == job.done
    if action in ("clear", "purge"):
        assert total.messages == job.counts["messages"]


def test_a_preview_counts_the_turns_that_a_removal_ends():
    session = make_each_state()[-1]
    at = {"session_key": session.key, "scope": SERVER, "by": BY}
    services.admit_turn(client_id="c2", content="and then?", **at)
    session.refresh_from_db()
    shown = preview_of("purge", [session])[session.pk]
    assert (shown.waiting, shown.ends_run, shown.partial_chars) == (1, True, 4)
    shown = preview_of("stop", [session])[session.pk]
    assert (shown.waiting, shown.ends_run, shown.partial_chars) == (0, True, 4)


@pytest.mark.parametrize("action", ACTIONS)
def test_a_preview_needs_the_same_statements_for_any_number_of_sessions(action):
    sessions = make_each_state()
    params = PARAMS.get(action, {})
    with CaptureQueriesContext(connection) as few:
        preview_of(action, sessions[-2:], params)
    with CaptureQueriesContext(connection) as many:
        preview_of(action, sessions, params)
    assert len(few) <= len(many) <= 3
    with CaptureQueriesContext(connection) as total:
        preview_total(action=action, sessions=Session.objects.all(), params=params)
    assert len(total) == 1


def test_a_total_counts_up_to_its_limit(monkeypatch):
    make_talks(5)
    monkeypatch.setattr(preview, "MAX_COUNTED", 3)
    total = preview_total(action="purge", sessions=Session.objects.all(), params={})
    assert (total.sessions, total.is_more) == (3, True)


def test_the_total_of_a_trim_is_an_upper_bound_or_unknown():
    make_talks(3)
    of_all = {"action": "trim", "sessions": Session.objects.all()}
    assert preview_total(params={"keep_last": 3}, **of_all).messages == 3
    assert preview_total(params={"keep_turns": 1}, **of_all).messages is None


def test_wrong_arguments_are_refused():
    with pytest.raises(BadInput):
        preview_of("trim", make_talks(1), {"keep_last": -1})


def test_a_session_has_a_code_for_each_action():
    held = make_each_state()[1]
    codes = skip_codes(held)
    assert codes.keys() == ACTIONS.keys()
    assert {name for name, code in codes.items() if not code} == {
        "release",
        "archive",
        "tag",
        "untag",
    }
