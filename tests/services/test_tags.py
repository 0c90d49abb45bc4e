"""Tags: added by the host and operators, recorded, and deleted with their session."""

from __future__ import annotations

import pytest

from chatmemory.errors import BadInput, NotFound
from chatmemory.models import AuditEntry, Session, SessionTag
from chatmemory.services import (
    Actor,
    append_messages,
    erase_person,
    purge_session,
    restore_session,
    tag_session,
    untag_session,
)
from chatmemory.services.integrity.sessions import check_integrity
from chatmemory.services.removal.vacuum import vacuum
from chatmemory.services.tags import tags_of
from tests.factories import TALK, make_messages, make_session, make_user

pytestmark = [pytest.mark.django_db, pytest.mark.database, pytest.mark.regression]


def test_a_tag_is_added_and_removed_once_and_recorded():
    session = make_session()
    entry = tag_session(**TALK, tag="contract", reason="signed")
    assert (entry.action, entry.session_pk, entry.counts) == (
        "tag",
        session.pk,
        {"tag": "contract"},
    )
    assert tag_session(**TALK, tag="contract", reason="again") is None
    assert tag_session(**TALK, tag="Contract", reason="another") is not None
    assert tags_of(session) == {"contract", "Contract"}
    assert untag_session(**TALK, tag="contract", reason="ended").action == "untag"
    assert untag_session(**TALK, tag="contract", reason="again") is None
    assert tags_of(session) == {"Contract"}
    assert AuditEntry.objects.count() == 3


@pytest.mark.parametrize("act", [tag_session, untag_session])
def test_users_and_visitors_cannot_tag(act):
    ann = make_user()
    make_session(owner=ann)
    for by in (Actor.user(ann), Actor.visitor("token")):
        with pytest.raises(TypeError, match="cannot tag sessions"):
            act(session_key="talk", by=by, tag="contract", reason="mine")
    assert not SessionTag.objects.exists()


@pytest.mark.parametrize("tag", ["", "x" * 101, "a\0b", "\ud800"])
def test_a_tag_that_a_database_cannot_store_is_refused(tag):
    make_session()
    with pytest.raises(BadInput):
        tag_session(**TALK, tag=tag, reason="")


def test_an_unknown_session_is_not_found():
    with pytest.raises(NotFound):
        tag_session(**TALK, tag="contract", reason="")


def test_a_purged_session_keeps_its_tags_for_its_restore():
    session = make_session()
    tag_session(**TALK, tag="contract", reason="")
    entry = purge_session(**TALK, reason="")
    assert tag_session(**TALK, session_pk=session.pk, tag="late", reason="").action == "tag"
    make_session("other")
    restore_session(entry_pk=entry.pk, by=TALK["by"], scope=TALK["scope"], reason="")
    assert tags_of(session) == {"contract", "late"}


def test_vacuum_deletes_the_tags_of_a_session_that_it_deletes(settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "UNDO_DAYS": 0}
    make_session()
    tag_session(**TALK, tag="contract", reason="")
    purge_session(**TALK, reason="")
    assert vacuum().sessions == 1
    assert not SessionTag.objects.exists()
    assert list(check_integrity()) == []


def test_an_erasure_deletes_the_tags():
    ann = make_user()
    session = make_session(owner=ann)
    scope = {"scope": session.scope, "by": TALK["by"]}
    append_messages(session_key="talk", messages=make_messages("a"), **scope)
    tag_session(session_key="talk", tag="contract", reason="", **scope)
    assert erase_person(reason="asked", **scope).sessions == 1
    assert not SessionTag.objects.exists()
    assert not Session.objects.exists()
