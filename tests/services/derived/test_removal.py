"""Derived rows follow each event of their messages; see the table in docs/howto/own-tables.md."""

from __future__ import annotations

import pytest
from django.db import connection

from chatmemory import derived
from chatmemory.errors import MemoryUnavailable
from chatmemory.models import (
    AuditAction,
    AuditEntry,
    DatabaseNow,
    Feedback,
    Message,
    Session,
    Turn,
    Visitor,
    database_now,
)
from chatmemory.models.derived import all_rows
from chatmemory.services import (
    Actor,
    admit_turn,
    adopt_visitor,
    append_messages,
    clear_session,
    count_stored_data,
    erase_person,
    preview_erasure,
    purge_session,
    redact_message,
    redact_turn,
    replay_erasures,
    restore_session,
    sessions_of,
    set_feedback,
    trim_session,
)
from chatmemory.services.integrity.database_restore import recover_restored_database
from chatmemory.services.integrity.sessions import check_integrity
from chatmemory.services.removal.vacuum import vacuum
from chatmemory.services.retention.retention import expire_sessions
from chatmemory.services.transfers.imports import begin_import, discard_import
from chatmemory.services.turns.progress import finish_turn
from tests.factories import BY, TALK, make_messages, make_user, make_visitor

pytestmark = [pytest.mark.django_db, pytest.mark.database]


@pytest.fixture
def talk(shop):
    """A conversation of four messages with rows of each model."""
    append_messages(**TALK, messages=make_messages("one", "two", "three", "four"), create=True)
    return fill(shop)


def fill(shop, address=TALK):
    """Store rows for messages 1 to 2, 3 to 4, and for all from the third on."""
    seen = derived.see(**address)
    for low, high in ((1, 2), (3, 4), (3, None)):
        for row in (
            shop.Summary(low=low, high=high, text="words"),
            shop.SearchBlock(low=low, high=high, words="words"),
            shop.Figure(low=low, high=high, length=5),
            shop.Attachment(low=low, high=high, file=f"{low}-{high}", caption="words"),
        ):
            assert derived.store(seen, [row])
        shop.FILES.add(f"{low}-{high}")
    session = Session.objects.get(pk=seen.session_pk)
    shop.Order.objects.create(chat=session, item="kettle")
    return session


def ranges(model, *, current=False):
    rows = model.objects.current() if current else model.objects.all()
    return sorted(rows.values_list("low", "high"), key=str)


ALL = [(1, 2), (3, 4), (3, None)]


def test_a_redaction_deletes_what_contains_the_words(
    shop, talk, django_capture_on_commit_callbacks
):
    with django_capture_on_commit_callbacks(execute=True):
        redact_message(**TALK, seq=2, reason="")
    assert ranges(shop.Summary) == ranges(shop.SearchBlock) == [(3, 4), (3, None)]
    assert ranges(shop.Figure) == ALL
    assert ranges(shop.Attachment) == [(3, 4), (3, None)]
    assert {"3-4", "3-None"} == shop.FILES


def test_a_redaction_also_deletes_open_ranges(shop, talk):
    append_messages(**TALK, messages=make_messages("five"))
    redact_message(**TALK, seq=5, reason="")
    assert ranges(shop.Summary) == [(1, 2), (3, 4)]


def test_a_row_that_has_become_unreadable_loses_its_derived_rows(shop, talk):
    Message.stored.filter(session=talk, seq=1).update(body="{")
    assert [found.code for found in check_integrity(repair_by=BY)] == ["unreadable"]
    assert ranges(shop.Summary) == [(3, 4), (3, None)]
    assert ranges(shop.Figure) == ALL


def test_a_redaction_of_an_unstored_text_moves_the_revisions_together(shop, talk):
    before = talk.revision
    ended = {"status": "interrupted", "partial": "x", "ended_at": talk.created_at}
    Turn.objects.create(session=talk, client_id="p", user_seq=3, epoch=talk.epoch, **ended)
    redact_turn(**TALK, turn="p", reason="")
    talk.refresh_from_db()
    assert (talk.revision, talk.rows_revision) == (before + 1, before + 1)


def test_the_reason_of_feedback_is_in_no_derived_row(shop, talk):
    turn = admit_turn(**TALK, client_id="f", content="hi", owner="me").claim
    finish_turn(claim=turn, status="complete", message={"role": "assistant", "content": "ho"})
    set_feedback(**TALK, turn="f", value=-1, reason="a key")
    redact_turn(**TALK, turn="f", reason="")
    assert not Feedback.objects.exclude(reason="").exists()
    assert ranges(shop.Summary) == ALL


@pytest.mark.parametrize("is_cancelled", [False, True], ids=["waiting", "cancelled"])
def test_the_text_of_a_turn_without_a_message_is_deleted_from_open_ranges(shop, talk, is_cancelled):
    seen = derived.see(**TALK)
    admit_turn(**TALK, client_id="w", content="x")
    if is_cancelled:
        clear_session(**TALK, reason="")
    redact_turn(**TALK, turn="w", reason="")
    assert ranges(shop.Summary) == [(1, 2), (3, 4)]
    assert ranges(shop.Figure) == ALL
    assert not derived.store(seen, [shop.Summary(low=1, high=1, text="a")])


def test_the_partial_text_of_a_turn_is_deleted_from_the_rows_from_its_message_on(shop, talk):
    ended = {"status": "interrupted", "partial": "x", "ended_at": talk.created_at}
    Turn.objects.create(session=talk, client_id="p", user_seq=3, epoch=talk.epoch, **ended)
    redact_turn(**TALK, turn="p", reason="")
    assert ranges(shop.Summary) == [(1, 2)]
    now = Session.objects.get()
    assert now.rows_revision == now.revision


@pytest.mark.parametrize(
    ("hide", "left"),
    [
        (lambda: trim_session(**TALK, before_seq=3, reason=""), [(3, 4), (3, None)]),
        (lambda: clear_session(**TALK, reason=""), []),
        (lambda: purge_session(**TALK, reason=""), []),
    ],
    ids=["trim", "clear", "purge"],
)
def test_a_removal_hides_rows_and_a_restore_shows_them_again(shop, talk, hide, left):
    entry = hide()
    assert ranges(shop.Summary) == ALL
    assert ranges(shop.Summary, current=True) == left
    assert ranges(shop.SearchBlock) == left
    restore_session(entry_pk=entry.pk, by=BY, scope=TALK["scope"], reason="")
    assert ranges(shop.Summary, current=True) == ALL
    assert ranges(shop.SearchBlock) == left


def test_an_edit_supersedes_rows(shop, talk):
    claim = admit_turn(
        **TALK, client_id="new", content="3", owner="me", replaces=3, expect_seq=3
    ).claim
    finish_turn(claim=claim, status="complete", message={"role": "assistant", "content": "4"})
    assert ranges(shop.Summary) == ALL
    assert ranges(shop.Summary, current=True) == ranges(shop.SearchBlock) == [(1, 2)]


def test_a_vacuum_deletes_what_began_below_the_floor(shop, talk, settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "UNDO_DAYS": 0}
    trim_session(**TALK, before_seq=3, reason="")
    assert vacuum(chunk=1).messages == 2
    for model in (shop.Summary, shop.Figure, shop.SearchBlock, shop.Attachment):
        assert ranges(model) == [(3, 4), (3, None)]
    assert shop.Order.objects.exists()


def test_a_vacuum_deletes_a_purged_session_with_all_rows(shop, talk, settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "UNDO_DAYS": 0}
    purge_session(**TALK, reason="")
    assert vacuum(chunk=1).sessions == 1
    for model in (shop.Summary, shop.Figure, shop.SearchBlock, shop.Attachment, shop.Order):
        assert not model._default_manager.exists()
    assert not shop.FILES


def test_a_vacuum_cleans_up_what_an_interrupted_call_left(shop, talk):
    shop.Attachment.objects.filter(low=1).update(**shop.Attachment.emptied())
    (tombstone,) = shop.Attachment.tombstones()
    assert (tombstone.file, tombstone.caption, tombstone.session) == ("1-2", "", None)
    vacuum()
    assert {"3-4", "3-None"} == shop.FILES


def test_an_erasure_deletes_all_rows_and_counts_them(shop):
    user = make_user()
    by, owner = Actor.user(user), Actor.user(user).owner
    address = {"session_key": "talk", "by": by}
    append_messages(**address, messages=make_messages("one", "two", "three", "four"), create=True)
    fill(shop, address)
    shop.Fact.objects.create(scope=owner, text="likes tea")
    shop.Fact.objects.create(scope="user:other", text="likes tea")
    assert preview_erasure(by=BY, scope=owner).derived == 14
    assert count_stored_data(sessions=Session.objects.all()).derived == 13
    assert count_stored_data(sessions=Session.objects.all(), scope=owner).derived == 14
    erased = erase_person(by=BY, scope=owner, reason="")
    assert erased.derived == erased.entry.counts["derived"] == 14
    for model in (shop.Summary, shop.Figure, shop.SearchBlock, shop.Attachment, shop.Order):
        assert not model._default_manager.exists()
    assert not shop.FILES
    assert [fact.scope for fact in shop.Fact.objects.all()] == ["user:other"]


def test_rows_that_the_app_itself_hides_are_removed_too(shop, talk):
    for low in (1, 4):
        shop.SearchBlock.objects.create(session=talk, low=low, high=low, words=shop.CANCELLED)
    shop.Order.objects.create(chat=talk, item=shop.CANCELLED)
    redact_message(**TALK, seq=1, reason="")
    hidden = all_rows(shop.SearchBlock).filter(words=shop.CANCELLED)
    assert hidden.get().low == 4
    erase_person(by=BY, scope=TALK["scope"], reason="")
    assert not hidden.exists()
    assert not shop.Order._base_manager.exists()


def test_the_partial_text_of_a_reply_is_forgotten_with_its_message(shop, talk):
    claim = admit_turn(**TALK, client_id="p", content="hi", owner="me").claim
    finish_turn(claim=claim, status="complete", message={"role": "assistant", "content": "ho"})
    seen = derived.see(**TALK)
    assert derived.store(seen, [shop.Summary(low=5, high=5, text="of the partial text")])
    redact_message(**TALK, seq=6, reason="")
    assert (5, 5) in ranges(shop.Summary)
    Turn.objects.filter(client_id="p").update(partial="h")
    Message.stored.filter(seq=6).update(redacted=False)
    redact_message(**TALK, seq=6, reason="")
    assert (5, 5) not in ranges(shop.Summary)


@pytest.mark.django_db(transaction=True)
def test_an_erasure_without_the_session_gets_no_receipt(shop, talk):
    """A table that Django does not know refers to the session."""
    with connection.cursor() as cursor, connection.schema_editor() as editor:
        key = editor.quote_name("session_id")
        kind = Session._meta.pk.rel_db_type(connection)
        refers = f"FOREIGN KEY ({key}) REFERENCES {Session._meta.db_table} (id)"
        cursor.execute(f"CREATE TABLE foreign_orders ({key} {kind}, {refers})")
        cursor.execute("INSERT INTO foreign_orders VALUES (%s)", [talk.pk])
    try:
        with pytest.raises(MemoryUnavailable):
            erase_person(by=BY, scope=TALK["scope"], reason="")
        receipts = AuditEntry.objects.filter(action=AuditAction.ERASE, session_pk=None)
        assert not receipts.exists()
        assert vacuum().left == 1
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP TABLE foreign_orders")
    erase_person(by=BY, scope=TALK["scope"], reason="")
    assert receipts.get().counts["sessions"] == 1


def test_an_ended_visitor_leaves_no_rows(shop):
    guest = make_visitor()
    append_messages(session_key="talk", by=guest.actor, messages=make_messages("one"), create=True)
    shop.Fact.objects.create(scope=guest.actor.owner, text="likes tea")
    Visitor.objects.update(ends_at=DatabaseNow())
    expire_sessions()
    assert not Visitor.objects.exists()
    assert not shop.Fact.objects.exists()


@pytest.mark.parametrize(
    ("policy", "is_left"), [("purge", False), ("erase", False), ("keep", True)]
)
def test_a_deleted_account_leaves_no_rows(
    shop, settings, django_capture_on_commit_callbacks, policy, is_left
):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "USER_DELETED": policy}
    user = make_user()
    shop.Fact.objects.create(scope=Actor.user(user).owner, text="likes tea")
    with django_capture_on_commit_callbacks(execute=True):
        user.delete()
    assert shop.Fact.objects.exists() == is_left


def test_an_erasure_gets_no_receipt_if_its_clean_up_fails(shop, talk, monkeypatch):
    def fail() -> None:
        raise OSError("The disk is full.")

    with monkeypatch.context() as patch:
        patch.setattr(shop.Attachment, "clean_up", fail)
        with pytest.raises(OSError, match="The disk is full"):
            erase_person(by=BY, scope=TALK["scope"], reason="")
    receipts = AuditEntry.objects.filter(action=AuditAction.ERASE, session_pk=None)
    assert not receipts.exists()
    erase_person(by=BY, scope=TALK["scope"], reason="")
    assert receipts.get().counts["derived"] == 13
    assert not shop.FILES


def test_a_replay_finds_people_who_have_only_rows_of_their_own(shop, tmp_path, settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "ERASURE_LIST": str(tmp_path / "list")}
    owner = Actor.user(make_user()).owner
    shop.Fact.objects.create(scope=owner, text="likes tea")
    erase_person(by=BY, scope=owner, reason="")
    assert not shop.Fact.objects.exists()
    AuditEntry.objects.all().delete()
    shop.Fact.objects.create(scope=owner, text="likes tea")
    assert replay_erasures(by=BY).erasures == 1
    assert not shop.Fact.objects.exists()


def test_an_adoption_moves_the_rows_of_the_person(shop):
    guest, user = make_visitor(), Actor.user(make_user())
    append_messages(session_key="talk", by=guest.actor, messages=make_messages("one"), create=True)
    seen = derived.see(session_key="talk", by=guest.actor)
    derived.store(seen, [shop.Summary(low=1, high=1, text="a")])
    shop.Fact.objects.create(scope=guest.actor.owner, text="likes tea")
    adopt_visitor(by=user, visitor=guest.actor)
    assert shop.Fact.objects.get().scope == user.owner
    assert sessions_of(user).get().pk == shop.Summary.objects.get().session_id


def test_a_restored_database_loses_its_derived_rows(shop, talk):
    recover_restored_database(by=BY, reason="")
    for model in (shop.Summary, shop.Figure, shop.SearchBlock, shop.Attachment):
        assert not model._default_manager.filter(session__isnull=False).exists()
    assert shop.Order.objects.exists()


def test_a_discarded_import_loses_its_rows(shop):
    columns = {"created_at": database_now(connection), "last_seq": 0, "stored_from": 1}
    found = begin_import(
        session_key="talk", session=columns, digest="x", by=BY, scope=TALK["scope"]
    )
    shop.Order.objects.create(chat_id=found.session_pk, item="kettle")
    discard_import(found=found)
    assert not shop.Order.objects.exists()
    assert not Session.objects.exists()


def test_rows_of_an_expired_session_are_not_current(shop, talk):
    Session.objects.update(expires_at=talk.created_at)
    assert ranges(shop.Summary) == ALL
    assert ranges(shop.Summary, current=True) == []


@pytest.mark.parametrize(("low", "high"), [(0, 1), (3, 2), (5, 5), (4, 5)])
def test_an_impossible_range_is_found(shop, talk, low, high):
    assert list(check_integrity()) == []
    shop.Summary.objects.create(session=talk, low=low, high=high, text="a")
    (found,) = check_integrity()
    assert (found.code, found.is_fixable) == ("derived", False)
    assert found.sentence == "1 derived rows have an impossible range of messages."
