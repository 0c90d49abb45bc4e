"""Actions in the admin: preview, confirmation, job, results, cancellation, undo."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from html import unescape
from urllib.parse import quote, urlencode

import pytest
from django.contrib.admin import site
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from chatmemory import services
from chatmemory.admin.jobs import selection
from chatmemory.models import AuditEntry, Job, Session, Turn
from chatmemory.services import SERVER, Actor
from chatmemory.services.jobs import preview, run
from chatmemory.services.jobs.actions import ACTIONS
from chatmemory.services.jobs.claims import claim_job
from chatmemory.services.jobs.create import Order
from tests.admin.visits import (
    ACTING,
    JOBS,
    LIST,
    action_url,
    confirm,
    job_url,
    notices,
    operator,
    shown,
    talk_of,
)
from tests.factories import BY, make_messages, make_session, make_user
from tests.scoped_admin import OWNER, ScopedSessionAdmin
from tests.services.jobs.ordering import finish, order

pytestmark = pytest.mark.django_db

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
GIVEN = {
    "trim": {"limit": "keep_last", "value": "2"},
    "tag": {"tag": "spam"},
    "untag": {"tag": "spam"},
}
FIRST = {"restore": "purge", "release": "hold", "unarchive": "archive", "untag": "tag"}


@pytest.fixture
def admin():
    return operator(*ACTING)


@pytest.fixture
def talk():
    """Return Ann's session, which has two turns."""
    return talk_of(make_user("ann"))


def make_many(count, **columns):
    """Store sessions with a message each, in few statements."""
    Session.objects.bulk_create(
        Session(scope=SERVER, key=f"many-{n}", last_seq=1, **columns) for n in range(count)
    )


def running_turn(session, client_id="c1"):
    services.admit_turn(
        session_key=session.key, scope=session.scope, client_id=client_id, content="and?",
        by=BY, owner="runner",
    )  # fmt: skip
    turn = Turn.objects.get(client_id=client_id)
    Turn.objects.filter(pk=turn.pk).update(started_at=timezone.now(), partial="so f")
    return turn


@pytest.mark.parametrize("action", [name for name in ACTIONS if name not in ("stop", "end")])
def test_an_action_on_one_session_ends_in_the_request(admin, talk, action):
    if action in FIRST:
        first = FIRST[action]
        confirm(admin, action_url(first, talk), **GIVEN.get(first, {}))
    answer = confirm(admin, action_url(action, talk), **GIVEN.get(action, {}))
    assert answer["Location"] == f"{LIST}{talk.pk}/change/"
    entry = AuditEntry.objects.latest("pk")
    assert (entry.action, entry.session_pk) == (action, talk.pk)
    assert (entry.reason, entry.actor_kind, entry.actor_label) == ("spam", "operator", "olga")
    job = Job.objects.latest("pk")
    assert (job.status, job.done, job.action) == ("complete", 1, action)
    assert LogEntry.objects.filter(object_id=str(talk.pk)).first().object_repr == (
        f"conversation {talk.pk}"
    )


@pytest.mark.parametrize("action", ["stop", "end"])
def test_an_operator_stops_a_reply_and_ends_a_stuck_one(admin, talk, action):
    turn = running_turn(talk)
    if action == "end":
        assert "not stuck" in shown(admin.get(action_url("end", talk)))
        Turn.objects.update(lease_until=timezone.now() - timedelta(minutes=1))
    assert "an unfinished reply of 4 characters" in shown(admin.get(action_url(action, talk)))
    confirm(admin, action_url(action, talk))
    turn.refresh_from_db()
    if action == "end":
        assert turn.status == "interrupted"
    else:
        assert turn.stop_requested_at is not None
    assert AuditEntry.objects.latest("pk").action == action


def test_the_results_are_shown_with_a_button_of_the_undo(admin, talk):
    answer = admin.get(confirm(admin, action_url("trim", talk), **GIVEN["trim"])["Location"])
    assert notices(answer) == ["2 messages of “talk” removed. Undo Details"]
    job, back = Job.objects.get(), quote(f"{LIST}{talk.pk}/change/")
    for attribute, page in (("href", ""), ("action", "undo/")):
        assert f'{attribute}="{job_url(job, page)}?back={back}"' in answer.content.decode()
    assert Session.objects.get().first_seq == 3


def cancel_url(page):
    """Return where Cancel leads."""
    [found] = re.findall(
        r'<a class="closelink[^>]* href="([^"]*)">Cancel</a>', page.content.decode()
    )
    return unescape(found)


@pytest.mark.slow
def test_cancel_leads_back_to_the_session_or_the_filtered_list(admin, talk):
    other = talk_of(make_user("eve"), key="other")
    filters = "owner_is=ann&tag=x+y"
    came = {"_changelist_filters": filters}
    session_page = f"{LIST}{talk.pk}/change/"
    filtered_page = f"{session_page}?{urlencode(came)}"

    page = admin.get(action_url("purge", talk))
    assert cancel_url(page) == session_page
    assert f'<a href="{session_page}">talk</a>' in page.content.decode()
    url = admin.get(session_page, came).context["menu"].url_of("archive")
    assert cancel_url(admin.get(url)) == filtered_page
    assert confirm(admin, url)["Location"] == filtered_page

    chosen = {"action": "purge", "_selected_action": [talk.pk, other.pk]}
    url = admin.post(f"{LIST}?scope_kind=user", chosen)["Location"]
    assert cancel_url(admin.get(url)) == f"{LIST}?scope_kind=user"
    assert cancel_url(admin.get(action_url("purge", talk, other))) == LIST
    url = admin.post(f"{LIST}?scope_kind=user", {**chosen, "select_across": "1"})["Location"]
    assert cancel_url(admin.get(url)) == f"{LIST}?scope_kind=user"


@pytest.mark.slow
def test_a_removal_is_undone_by_a_job(admin, talk):
    confirm(admin, action_url("purge", talk))
    job = Job.objects.get()
    page = admin.get(job_url(job))
    assert "Undo…" in shown(page)
    assert f'<a href="{JOBS}">Jobs</a>' in page.content.decode()
    page = admin.get(job_url(job, "undo/"))
    assert "Restore 4 messages of “talk”? It stays as it is if it has changed since." in shown(page)
    assert 'value="Undo: spam"' in page.content.decode()
    assert "This field is required" in shown(admin.post(job_url(job, "undo/"), {"reason": ""}))
    answer = admin.post(job_url(job, "undo/"), {"reason": "a mistake"}, follow=True)
    assert "1 conversation restored. 4 messages restored." in shown(answer)
    assert f'href="{job_url(job)}"' in answer.content.decode()
    assert Session.objects.get().removed_at is None
    entry = AuditEntry.objects.latest("pk")
    assert (entry.action, entry.reason, entry.actor_label) == ("restore", "a mistake", "olga")
    assert "Undo…" not in shown(admin.get(job_url(job)))
    again = admin.get(job_url(job, "undo/"), follow=True)
    assert notices(again) == ["This job cannot be undone, or was undone already."]


@pytest.mark.slow
def test_several_sessions_are_changed_by_one_job(admin):
    talks = [talk_of(make_user(name), key=name) for name in ("ann", "bob", "eve")]
    chosen = {"action": "purge", "_selected_action": [talk.pk for talk in talks[:2]]}
    page = admin.post(LIST, chosen, follow=True)
    assert page.context["summary"].count == 8
    address = page.redirect_chain[-1][0]
    answer = admin.post(address, {"reason": "spam", "count": 8}, follow=True)
    assert answer.redirect_chain[-1][0] == LIST
    assert notices(answer) == ["2 conversations purged. 8 messages removed. Undo Details"]
    answer = admin.get(job_url(Job.objects.get()))
    page = shown(answer)
    assert "Purge: 2 conversations Complete" in page
    assert "2 conversations purged. 8 messages removed." in page
    for entry in AuditEntry.objects.all():
        assert f"/admin/chatmemory/auditentry/{entry.pk}/change/" in answer.content.decode()
    assert Session.objects.get(removed_at__isnull=True).key == "eve"


def test_the_preview_lists_what_is_removed_and_what_is_skipped(admin):
    idle, running, held, purged = (
        talk_of(make_user(name), key=name) for name in ("ann", "bob", "eve", "dan")
    )
    running_turn(running)
    services.admit_turn(
        session_key="bob", scope=running.scope, client_id="c2", content="or?", by=BY
    )
    Session.objects.filter(pk=held.pk).update(held_at=LONG_AGO)
    services.purge_session(session_key="dan", scope=purged.scope, by=BY, reason="")
    answer = admin.get(action_url("clear", idle, running, held, purged))
    page = shown(answer)
    assert "1: The conversation is on hold. 1: The conversation is purged." in page
    assert "Cancels 1 waiting message. Ends an unfinished reply of 4 characters." in page
    assert "Clear 9 messages" in page
    rows = answer.context["summary"].rows
    assert [(row.preview.messages, row.skipped) for row in rows] == [
        (4, ""),
        (5, ""),
        (0, "The conversation is on hold."),
        (0, "The conversation is purged."),
    ]


def test_a_preview_that_has_changed_is_confirmed_again(admin, talk):
    given = {**GIVEN["trim"], "reason": "too long", "count": 2}
    services.append_messages(
        session_key="talk", messages=make_messages("more", "yes"), by=BY, scope=talk.scope
    )
    assert "Messages to remove now: 4." in shown(admin.post(action_url("trim", talk), given))
    assert Session.objects.get().first_seq == 1
    assert not Job.objects.exists()


@pytest.mark.parametrize(
    ("limit", "value"),
    [
        *(("keep_last", value) for value in ("-1", "", "1.5", "text", "1e9", "1" * 5_000, "٣")),
        *(("before", value) for value in ("2026-02-30", "3", "0001-01-01x", "9" * 400)),
    ],
)
def test_a_wrong_limit_is_an_error_of_its_field(admin, talk, limit, value):
    given = {"limit": limit, "value": value, "reason": "too long", "count": 0}
    answer = admin.post(action_url("trim", talk), given)
    assert "value" in answer.context["errors"]
    assert not Job.objects.exists()


@pytest.mark.parametrize(
    ("limit", "value", "messages"),
    [
        ("keep_last", "3", 0),
        ("keep_turns", "1", 2),
        ("keep_tokens", "0", 4),
        ("before_seq", "3", 2),
        ("before", "2021-01-01", 2),
        ("before", "2021-01-01 08:00", 2),
        ("keep_last", "9" * 18, 0),
        ("before_seq", "9" * 18, 4),
    ],
)
def test_a_trim_by_each_limit_removes_the_previewed_messages(admin, talk, limit, value, messages):
    talk.messages(manager="stored").filter(seq__lte=2).update(created_at=LONG_AGO)
    given = {"limit": limit, "value": value}
    looked = admin.post(action_url("trim", talk), {**given, "preview": "1"})
    assert looked.context["summary"].count == messages
    assert "This field is required" not in shown(looked)
    confirm(admin, action_url("trim", talk), **given)
    assert Session.objects.get().first_seq == 1 + messages


@pytest.mark.parametrize("messages", [100, 101])
def test_a_removal_of_many_messages_requires_the_typed_number(admin, messages):
    talk = talk_of(make_user("ann"), *(f"text {n}" for n in range(messages)))
    page = admin.get(action_url("purge", talk)).content.decode()
    assert ('<input type="number" name="count"' in page) == (messages > 100)
    if messages > 100:
        for count, error in (("", "required"), ("3", "Messages to remove now: 101."), ("x", "who")):
            answer = admin.post(action_url("purge", talk), {"reason": "spam", "count": count})
            assert error in shown(answer)
        assert not Job.objects.exists()
    admin.post(action_url("purge", talk), {"reason": "spam", "count": messages})
    assert Session.objects.get().removed_at is not None


@pytest.mark.parametrize("sessions", [10, 11])
def test_a_removal_from_many_sessions_requires_the_typed_number(admin, sessions):
    make_many(sessions)
    page = admin.get(action_url("purge", *Session.objects.all())).content.decode()
    assert ('<input type="number" name="count"' in page) == (sessions > 10)


@pytest.mark.parametrize("name", [*ACTIONS, "export"])
def test_each_action_requires_a_reason(admin, talk, name):
    answer = admin.post(action_url(name, talk), {**GIVEN.get(name, {}), "count": 1, "reason": "  "})
    assert "reason" in answer.context["errors"]
    assert not Job.objects.exists()


def test_a_reason_that_cannot_be_stored_is_an_error(admin, talk):
    answer = admin.post(action_url("hold", talk), {"count": 1, "reason": "a\x00b"})
    assert answer.context["errors"]
    assert not Job.objects.exists()


@pytest.mark.slow
def test_a_skipped_session_is_reported_in_words(admin, talk):
    Session.objects.update(held_at=LONG_AGO)
    for name in ("trim", "clear", "purge"):
        answer = confirm(admin, action_url(name, talk), **GIVEN.get(name, {}))
        assert notices(admin.get(answer["Location"])) == [
            "“talk” stays as it is. The conversation is on hold. Details"
        ]
    assert Session.objects.get().message_count == 4


def test_the_second_of_two_operators_is_notified_of_the_removal(admin, talk):
    other = operator(*ACTING, name="otto")
    assert other.get(action_url("purge", talk)).context["summary"].count == 4
    confirm(admin, action_url("purge", talk))
    answer = other.post(action_url("purge", talk), {"reason": "spam", "count": 4})
    assert "The conversation is purged." in shown(answer)
    assert AuditEntry.objects.count() == 1


@pytest.mark.slow
def test_a_restore_can_name_an_earlier_removal(admin, talk):
    confirm(admin, action_url("trim", talk), **GIVEN["trim"])
    first = AuditEntry.objects.get()
    confirm(admin, action_url("purge", talk))
    address = f"{action_url('restore', talk)}&entry={first.pk}"
    assert admin.get(address).context["summary"].messages == 4
    confirm(admin, address)
    session = Session.objects.get()
    assert (session.first_seq, session.removed_at) == (1, None)


@pytest.mark.parametrize("query", ["", "?session=x", "?session=0", "?session=" + "9" * 30])
@pytest.mark.parametrize("name", ["purge", "export"])
def test_an_action_without_sessions_is_not_found(admin, name, query):
    assert admin.get(f"{LIST}action/{name}/{query}").status_code == 404


@pytest.mark.parametrize("query", ["?all=1", "?all=1&state=held", "?all=1&no_such=1", "?all=1&q=x"])
def test_all_of_no_sessions_is_not_found(admin, query):
    assert admin.get(f"{LIST}action/purge/{query}").status_code == 404


def test_an_unknown_action_is_not_found(admin, talk):
    assert admin.get(action_url("erase", talk)).status_code == 404


def select_across(client, action, query=""):
    """Select all sessions that match in the list, and return the page that confirms the action."""
    first = client.get(f"{LIST}{query}").context["cl"].result_list[0]
    chosen = {"action": action, "select_across": "1", "_selected_action": [first.pk]}
    return client.post(f"{LIST}{query}", chosen, follow=True)


@pytest.mark.slow
def test_all_sessions_that_match_the_filter_are_changed(admin):
    make_many(101)
    make_session("other", archived_at=LONG_AGO)
    page = select_across(admin, "purge", "?q=many-")
    summary = page.context["summary"]
    assert (summary.count, summary.messages, summary.is_listed) == (101, 101, False)
    assert "101 conversations will change." in shown(page)
    assert "The table shows the first 100" in shown(page)
    address = page.redirect_chain[-1][0]
    assert "Conversations now: 101" in shown(admin.post(address, {"reason": "spam", "count": 100}))
    answer = admin.post(address, {"reason": "spam", "count": 101}, follow=True)
    job = finish(Job.objects.get())
    assert (job.total, job.done) == (101, 101)
    assert Session.objects.filter(removed_at__isnull=True).get().key == "other"
    assert answer.redirect_chain[-1][0] == f"{LIST}?q=many-"


@pytest.mark.slow
def test_the_default_list_selects_no_purged_or_expired_sessions(admin):
    make_many(3)
    make_session("expired", expires_at=LONG_AGO)
    page = select_across(admin, "hold")
    assert [row.session.key for row in page.context["summary"].rows] != []
    confirm(admin, page.redirect_chain[-1][0])
    assert Job.objects.get().total == 3


@pytest.mark.database
@pytest.mark.slow
def test_all_sessions_are_changed_in_requests_alone(admin, settings):
    """As on a WSGI server: each request of the job's page executes a slice."""
    make_many(120)
    address = f"{LIST}action/hold/?all=1"
    assert admin.get(address).context["summary"].count == 120
    admin.post(address, {"reason": "a dispute", "count": 120})
    job = Job.objects.get()
    requests = 0
    while Job.objects.get().is_active:
        text = shown(admin.get(job_url(job)))
        assert "of 120 conversations done" in text or not Job.objects.get().is_active
        requests += 1
        assert requests < 200  # usually below 10
    assert (Job.objects.get().done, Job.objects.get().skipped) == (120, {})
    assert AuditEntry.objects.filter(action="hold").count() == 120


def test_a_count_ends_at_its_limit(admin, monkeypatch):
    make_many(5)
    monkeypatch.setattr(selection, "MAX_LISTED", 3)
    monkeypatch.setattr(preview, "MAX_COUNTED", 3)
    page = admin.get(f"{LIST}action/purge/?all=1")
    assert "More than 3 conversations will change." in shown(page)
    admin.post(f"{LIST}action/purge/?all=1", {"reason": "spam", "count": 3})
    assert finish(Job.objects.get()).done == 5


def statements(client, address):
    with CaptureQueriesContext(connection) as queries:
        assert client.get(address).status_code == 200
    return len(queries)


@pytest.mark.slow
@pytest.mark.database
@pytest.mark.parametrize("action", [*ACTIONS, "export"])
def test_a_preview_of_many_sessions_needs_few_statements(admin, action):
    for number in range(3):
        running_turn(talk_of(make_user(), key=f"talk-{number}"), f"c{number}")
    make_many(12)
    for address in (action_url(action, *Session.objects.all()), f"{LIST}action/{action}/?all=1"):
        assert statements(admin, address) <= 12
    make_many_more()
    assert statements(admin, f"{LIST}action/{action}/?all=1") <= 12


def make_many_more():
    Session.objects.bulk_create(Session(scope=SERVER, key=f"more-{n}") for n in range(15))


@pytest.mark.parametrize(
    "limit", ["keep_last", "keep_turns", "keep_tokens", "before", "before_seq"]
)
def test_a_preview_of_each_trim_needs_few_statements(admin, limit):
    for number in range(3):
        running_turn(talk_of(make_user(), key=f"talk-{number}"), f"c{number}")
    given = {"limit": limit, "value": "2026-01-01" if limit == "before" else "2", "preview": "1"}
    with CaptureQueriesContext(connection) as queries:
        admin.post(action_url("trim", *Session.objects.all()), given)
    assert len(queries) <= 12


def waiting_job(rights=ACTING):
    """Return a job of Olga that no process has begun."""
    olga = User.objects.get(username="olga")
    make_many(run.CHUNK + 5)
    return order("hold", order=Order(by=Actor.operator(olga), reason="spam", permissions=rights))


@pytest.mark.slow
def test_the_page_of_an_active_job_updates_itself_and_continues_it(admin):
    job = waiting_job()
    claim = claim_job(owner="other")
    page = admin.get(job_url(job))
    assert "chatmemory/admin/job.js" in page.content.decode()
    assert '<noscript><meta http-equiv="refresh"' in page.content.decode()
    assert "0 of 15 conversations done" in shown(page)
    Job.objects.update(lease_until=None)
    assert claim is not None
    for _ in range(20):  # on a slow machine, a request of a second does not finish the job
        page = admin.get(job_url(job))
        if "chatmemory/admin/job.js" not in page.content.decode():
            break
    assert "Put on hold: 15 conversations Complete" in shown(page)


def test_a_job_is_cancelled(admin):
    job = waiting_job()
    assert claim_job(owner="other")
    assert "Cancel this job" in shown(admin.get(job_url(job)))
    assert admin.get(job_url(job, "cancel/")).status_code == 405
    answer = admin.post(job_url(job, "cancel/"), follow=True)
    assert notices(answer) == ["The job stops. What it has done stays done."]
    assert "Cancel this job" not in shown(answer)
    Job.objects.update(lease_until=None)
    assert "Put on hold: 15 conversations Cancelled" in shown(admin.get(job_url(job)))
    assert "Cancelled by" in shown(admin.get(job_url(job)))
    assert "15 conversations were left as they were." in shown(admin.get(job_url(job)))
    assert notices(admin.post(job_url(job, "cancel/"), follow=True)) == [
        "The job has ended already."
    ]


def test_a_job_ends_when_the_operator_loses_the_permission(admin):
    job = waiting_job(rights=("view_session", "hold_session"))
    Permission.objects.get(codename="hold_session").user_set.clear()
    page = shown(admin.get(job_url(job)))
    assert "Failed. The operator may not do this any more." in page


@pytest.mark.slow
def test_the_page_of_a_job_lists_its_sessions_page_by_page(admin):
    make_many(102)
    Session.objects.filter(key="many-0").update(held_at=LONG_AGO)
    job = finish(order("hold", order=Order(by=BY, reason="<b>spam</b>")))
    page = admin.get(job_url(job))
    assert "1 : There is nothing to change." in shown(page)
    assert "<b>spam" not in page.content.decode()
    assert len(page.context["rows"]) == 100
    rest = admin.get(f"{job_url(job)}?after={page.context['next']}")
    assert (len(rest.context["rows"]), rest.context["next"]) == (2, None)
    skipped = admin.get(f"{job_url(job)}?outcome=unchanged")
    assert [row.name for row in skipped.context["rows"]] == ["many-0"]
    assert statements(admin, job_url(job)) <= 12


@pytest.mark.slow
def test_an_operator_views_own_jobs_and_with_view_audit_all(admin, talk):
    confirm(admin, action_url("hold", talk))
    job = Job.objects.get()
    other = operator("view_session", "hold_session", name="otto")
    auditor = operator("view_session", "view_audit", name="eva")
    assert "Put on hold" in shown(admin.get(JOBS))
    assert "Put on hold" in shown(auditor.get(JOBS))
    assert f"#{job.pk}" in shown(admin.get(JOBS))
    assert "Put on hold: 1 conversation" not in shown(other.get(JOBS))
    assert auditor.get(job_url(job)).status_code == 200
    for page in ("", "undo/"):
        assert other.get(job_url(job, page)).status_code == 404
    assert other.post(job_url(job, "cancel/")).status_code == 404
    for page in ("undo/", "cancel/"):
        assert auditor.post(job_url(job, page), {"reason": "x"}).status_code == 403
    assert "Undo…" not in shown(auditor.get(job_url(job)))


@pytest.mark.slow
def test_a_job_is_named_by_what_it_does(admin, talk, monkeypatch):
    confirm(admin, action_url("purge", talk))
    Job.objects.update(total=12_345, created_at=timezone.now() - timedelta(minutes=3))
    job = Job.objects.get()
    for page in (JOBS, job_url(job), job_url(job, "undo/")):
        text = shown(admin.get(page))
        assert "Purge: 12,345 conversations" in text
        assert not re.search(rf"(?i)job {job.pk}\b", text), page
    assert "3 min ago" in shown(admin.get(JOBS))
    admin.post(job_url(job, "undo/"), {"reason": "a mistake"})
    undo = Job.objects.latest("pk")
    assert "Undoes Purge: 12,345 conversations" in shown(admin.get(job_url(undo)))
    assert "Undone by Restore: 1 conversation" in shown(admin.get(job_url(job)))


def test_a_job_does_not_link_a_job_that_the_operator_cannot_view(admin, talk):
    confirm(admin, action_url("purge", talk))
    job = Job.objects.get()
    other = operator(*ACTING, name="otto")
    other.post(job_url(job, "undo/"), {"reason": "a mistake"})
    undo = Job.objects.latest("pk")
    assert job_url(job) in other.get(job_url(undo)).content.decode()
    Permission.objects.get(codename="view_audit").user_set.clear()
    page = other.get(job_url(undo))
    assert (page.status_code, "Undoes" in shown(page)) == (200, False)
    assert job_url(job) not in page.content.decode()
    assert job_url(undo) not in admin.get(job_url(job)).content.decode()


@pytest.mark.slow
def test_the_list_of_jobs_is_filtered_and_read_only(admin, talk):
    confirm(admin, action_url("hold", talk))
    confirm(admin, action_url("hold", talk))
    page = shown(admin.get(JOBS))
    assert "0 of 1 (skipped: 1)" in page
    assert "1 of 1" in page
    assert "Put on hold: 1" not in shown(admin.get(f"{JOBS}?action_is=purge"))
    assert "Put on hold: 1" in shown(admin.get(f"{JOBS}?status_is=complete"))
    assert "changelist-search" not in admin.get(JOBS).content.decode(), "it has no search"
    job = Job.objects.first()
    for path in ("add/", f"{job.pk}/change/", f"{job.pk}/delete/"):
        assert admin.get(f"{JOBS}{path}").status_code == 404


@pytest.mark.slow
def test_the_permissions_of_each_action_are_needed(talk):
    for name, action in ACTIONS.items():
        client = operator("view_session", *set(ACTING) - {action.permission}, name=f"no-{name}")
        assert client.get(action_url(name, talk)).status_code == 403
        assert client.get(f"{LIST}action/{name}/?all=1").status_code == 403
        assert client.post(action_url(name, talk), {"reason": "x", "count": 1}).status_code == 403
    assert not Job.objects.exists()
    refused = set(AuditEntry.objects.values_list("action", "reason"))
    assert refused == {("refused", action.permission) for action in ACTIONS.values()}


@pytest.fixture
def scoped(settings):
    """Return sessions inside and outside of what the host's operators can view."""
    settings.ROOT_URLCONF = "tests.scoped_admin"
    return talk_of(make_user(OWNER), key="own"), talk_of(make_user("bob"), key="classified")


@pytest.mark.parametrize("name", [*ACTIONS, "export"])
def test_no_action_reaches_a_session_outside_the_hosts_queryset(admin, scoped, name):
    own, foreign = scoped
    given = {**GIVEN.get(name, {}), "reason": "x", "count": 0, "format": "jsonl"}
    assert admin.post(action_url(name, foreign), given).status_code == 404
    for address in (action_url(name, own, foreign), f"{LIST}action/{name}/?all=1"):
        page = admin.get(address)
        assert "classified" not in page.content.decode()
        assert [s.pk for s in page.context["selection"].listed] == [own.pk]
    assert set(Job.objects.values_list("items__session_pk", flat=True)) <= {own.pk}


def test_all_that_match_are_only_those_of_the_hosts_queryset(admin, scoped):
    own, foreign = scoped
    confirm(admin, f"{LIST}action/purge/?all=1")
    assert list(AuditEntry.objects.values_list("session_pk", flat=True)) == [own.pk]
    foreign.refresh_from_db()
    assert foreign.removed_at is None


def test_a_job_shows_and_undoes_only_sessions_of_the_hosts_queryset(admin, scoped):
    own, foreign = scoped
    job = finish(order("hold"))
    page = admin.get(job_url(job))
    assert "classified" not in page.content.decode()
    assert f"/session/{foreign.pk}/change/" not in page.content.decode()
    assert f"/session/{own.pk}/change/" in page.content.decode()
    admin.post(job_url(job, "undo/"), {"reason": "x"})
    assert finish(Job.objects.latest("pk")).total == 1
    assert Session.objects.get(held_at__isnull=True) == own


@pytest.mark.slow
def test_a_permission_for_one_session_prevents_the_selection_of_all(admin, scoped, monkeypatch):
    own, _ = scoped
    monkeypatch.setattr(selection, "MAX_LISTED", 1)
    talk_of(User.objects.get(username=OWNER), key="second")
    monkeypatch.setattr(
        ScopedSessionAdmin,
        "has_hold_session_permission",
        lambda self, request, obj=None: obj in (None, own),
        raising=False,
    )
    answer = admin.post(f"{LIST}action/hold/?all=1", {"reason": "x", "count": 1}, follow=True)
    assert "decides for each conversation" in notices(answer)[0]
    assert not Job.objects.exists()
    named = action_url("hold", *Session.objects.filter(owner=own.owner))
    assert [s.pk for s in admin.get(named).context["selection"].listed] == [own.pk]


def downloaded(answer):
    assert answer.status_code == 200
    return b"".join(answer.streaming_content).decode()


def test_an_export_is_a_download_with_an_audit_entry_for_each_session(admin, talk):
    other = talk_of(make_user("bob"), "something else", key="other")
    assert "the audit records" in shown(admin.get(action_url("export", talk))).lower()
    given = {"format": "jsonl", "reason": "a request"}
    answer = admin.post(action_url("export", talk, other), given)
    assert answer["Content-Disposition"] == 'attachment; filename="chats.jsonl"'
    assert "something else" in downloaded(answer)
    entries = AuditEntry.objects.filter(action="export")
    assert set(entries.values_list("session_pk", "reason")) == {
        (talk.pk, "a request"),
        (other.pk, "a request"),
    }
    assert "something else" not in downloaded(admin.post(action_url("export", talk), given))
    assert not Job.objects.exists()


@pytest.mark.slow
def test_an_export_of_many_sessions_has_one_entry(admin):
    make_many(101)
    Session.objects.update(first_seq=2)
    answer = admin.post(f"{LIST}action/export/?all=1", {"format": "jsonl", "reason": "backup"})
    assert "many-100" in downloaded(answer)
    entry = AuditEntry.objects.get()
    assert (entry.session_pk, entry.counts["sessions"]) == (None, 101)


def test_an_export_proposes_markdown_then_the_last_format(admin, talk):
    page = action_url("export", talk)
    person = f"{LIST}person/export/?scope={talk.scope}"

    def proposed():
        return [admin.get(one).context["form"].form["format"].value() for one in (page, person)]

    assert proposed() == ["markdown", "markdown"]
    for name, of_person in (("csv", "csv"), ("openai", "markdown")):
        assert admin.post(page, {"format": name, "reason": "x"}).status_code == 200
        assert proposed() == [name, of_person]
    assert admin.post(person, {"format": "jsonl", "reason": "x"}).status_code == 200
    assert proposed() == ["jsonl", "jsonl"]


def test_an_unknown_format_is_an_error(admin, talk):
    answer = admin.post(action_url("export", talk), {"format": "own-json", "reason": "x"})
    assert "format" in answer.context["errors"]
    assert not AuditEntry.objects.exists()


@pytest.mark.parametrize(
    ("columns", "offered", "disabled"),
    [
        ({}, {"trim", "clear", "purge", "hold", "archive", "tag", "untag", "export"}, {"stop"}),
        (
            {"held_at": LONG_AGO, "archived_at": LONG_AGO},
            {"release", "unarchive", "tag", "untag", "export"},
            {"trim", "clear", "purge", "stop"},
        ),
    ],
    ids=["idle", "held"],
)
def test_a_session_offers_the_actions_that_have_an_effect(rf, talk, columns, offered, disabled):
    Session.objects.update(**columns)
    request = rf.get("/")
    request.user = make_user("root", is_staff=True, is_superuser=True)
    model_admin = site.get_model_admin(Session)
    found = model_admin.available_actions(request, talk)
    assert {offer.action for offer in found if not offer.disabled} == offered
    assert {offer.action for offer in found if offer.disabled} == disabled
    assert found[0].url == action_url("trim", talk)
    request.user = make_user("otto", is_staff=True)
    assert model_admin.available_actions(request, talk) == []


@pytest.mark.slow
def test_the_pages_of_a_second_site_lead_to_that_site(admin, talk, settings):
    settings.ROOT_URLCONF = "tests.two_admins"
    ops = "/ops/chatmemory/session/"
    confirm_page = admin.post(ops, {"action": "hold", "_selected_action": [talk.pk]})["Location"]
    assert confirm_page == f"{ops}action/hold/?session={talk.pk}&back={quote(ops, safe='')}"
    assert '"/admin/' not in admin.get(confirm_page).content.decode()
    given = {"reason": "x", "count": 1}
    assert admin.post(confirm_page, given)["Location"] == ops
    assert '"/admin/' not in admin.get(ops).content.decode()
    job = Job.objects.get()
    for page in ("", "undo/"):
        assert '"/admin/' not in admin.get(f"{ops}jobs/{job.pk}/{page}").content.decode()


@pytest.mark.slow
def test_the_pages_have_no_inline_script_or_style(admin, talk):
    confirm(admin, action_url("hold", talk))
    job = Job.objects.get()
    pages = (
        action_url("trim", talk),
        action_url("export", talk),
        job_url(job),
        job_url(job, "undo/"),
    )
    for page in (*pages, JOBS):
        html = admin.get(page).content.decode()
        assert not re.search(r"<script(?![^>]*\bsrc=)(?![^>]*application/json)", html), page
        assert not re.search(r"<style|\sstyle=|\son\w+=", html), page


def test_hostile_text_is_inert(admin):
    text = '"><b>bold</b>\u202e'
    talk = talk_of(make_user("ann"), title=text)
    page = admin.get(action_url("purge", talk)).content.decode()
    assert "<b>bold" not in page
    assert "\u202e" not in page
    confirm(admin, action_url("tag", talk), tag="<b>bold</b>")
    page = admin.get(job_url(Job.objects.get())).content.decode()
    assert "<b>bold" not in page
    assert "\u202e" not in page
