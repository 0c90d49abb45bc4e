"""Appending: all or none, in order, once, unchanged, and only to open sessions."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from enum import Enum

import pytest
from django.db import IntegrityError, connection, transaction
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from chatmemory import signals
from chatmemory.codec import encode
from chatmemory.conf import settings
from chatmemory.errors import (
    Archived,
    BadInput,
    Busy,
    ChatMemoryError,
    Conflict,
    HistoryCleared,
    MemoryUnavailable,
    NotFound,
)
from chatmemory.models import Message, Session, Turn
from chatmemory.services import (
    SERVER,
    Actor,
    Appended,
    admit_turn,
    append_messages,
    clear_session,
    purge_session,
    read_history,
    read_page,
    redact_message,
    trim_session,
)
from chatmemory.services.turns.progress import finish_turn, start_turn
from tests.factories import TALK, make_messages, make_session, make_user
from tests.locking import held, kill_waiting_connections, second_connection, thread

pytestmark = [pytest.mark.django_db, pytest.mark.database]
commits = pytest.mark.django_db(transaction=True)

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


def append(*texts, **changes) -> Appended:
    return append_messages(**{**TALK, "messages": make_messages(*texts), **changes})


def stored(session: Session) -> list[tuple[int, str]]:
    return list(Message.stored.filter(session=session).in_order().values_list("seq", "text"))


def contents(key: str = "talk") -> list[object]:
    rows = read_history(**{**TALK, "session_key": key}).rows
    return [row.plain()["content"] for row in rows]


def test_seqs_start_at_one_and_have_no_gap():
    session = make_session()
    for text in "abc":
        append(text)
    assert stored(session) == [(1, "a"), (2, "b"), (3, "c")]


def test_a_batch_gets_consecutive_seqs_and_returns_them():
    make_session()
    append("a")
    batch = append("b", "c", "d")
    assert (batch.first_seq, batch.last_seq, batch.is_duplicate) == (2, 4, False)


@pytest.mark.parametrize("size", [16, 17, 1_000])
def test_a_batch_of_any_size_keeps_its_order(size):
    session = make_session()
    texts = [f"{number} Ünïcode 🌍" for number in range(size)]
    append(*texts)
    assert stored(session) == list(enumerate(texts, 1))


@pytest.mark.parametrize("is_same_after_first", [True, False])
@pytest.mark.parametrize("is_plain", [True, False])
def test_a_large_batch_is_stored_as_it_was_encoded(is_plain, is_same_after_first):
    """Columns with the same value in all rows, or in all but the first, are sent once."""
    texts = ["first", *(["same"] * 5 if is_same_after_first else ['{"\\', "NULL", "", "é,", "%s"])]
    roles = ["user", *["assistant"] * 5] if is_same_after_first else ["user", "system"] * 3
    batch: list[dict[str, object]] = [
        {"role": role, "content": text} | ({} if is_plain else {"id": text})
        for role, text in zip(roles, texts, strict=True)
    ]
    batch[0]["name"] = "only the first has a body"
    make_session()
    append_messages(**TALK, messages=batch, client_id="c")
    rows = Message.objects.in_order()
    stored = rows.values_list("role", "text", "body", "tokens", "status", "error", "model", "step")
    encoded = map(encode, batch)
    assert list(stored) == [
        (row.role, row.text, row.body, row.tokens, "complete", "", "", None) for row in encoded
    ]
    assert list(rows.values_list("client_id", "batch")) == [("c", 6), *[(None, None)] * 5]


class Speaker(str, Enum):  # noqa: UP042  # the text of a StrEnum's member is its value
    PERSON = "user"


@pytest.mark.parametrize("count", [1, 6])
def test_a_role_may_be_a_member_of_an_enum(count):
    make_session()
    append_messages(**TALK, messages=[{"role": Speaker.PERSON, "content": "hi"}] * count)
    assert set(Message.objects.values_list("role", flat=True)) == {"user"}


def test_a_batch_of_more_than_a_thousand_messages_is_refused():
    session = make_session()
    with pytest.raises(BadInput) as caught:
        append(*["x"] * 1_001)
    assert caught.value.code == "too_many"
    assert stored(session) == []


@pytest.mark.regression
def test_an_empty_batch_stores_nothing_and_uses_no_seq():
    session = make_session()
    append("a")
    empty = append(client_id="one")
    assert (empty.session_pk, empty.epoch) == (session.pk, session.epoch)
    assert (empty.first_seq, empty.last_seq, empty.is_duplicate) == (2, 1, False)
    append("b", client_id="one")
    assert stored(session) == [(1, "a"), (2, "b")]


@pytest.mark.regression
def test_an_empty_batch_is_accepted_by_an_archived_or_busy_session():
    make_session(archived_at=timezone.now(), running="c1")
    assert append().last_seq == 0


@pytest.mark.regression
def test_an_empty_batch_needs_a_session_and_its_epoch():
    with pytest.raises(NotFound):
        append()
    made = append_messages(**TALK, messages=[], create=True)
    assert Session.objects.get().pk == made.session_pk
    with pytest.raises(HistoryCleared):
        append_messages(**TALK, messages=[], epoch=made.epoch + 1)


def test_a_missing_session_is_an_error_and_not_an_empty_one():
    for call in (read_page, read_history):
        with pytest.raises(NotFound):
            call(**TALK)
    with pytest.raises(NotFound):
        trim_session(**TALK, reason="test", keep_last=1)


def test_a_batch_with_one_bad_message_is_not_stored():
    session = make_session()
    with pytest.raises(BadInput, match=r"messages\[2\]"):
        append_messages(
            **TALK, messages=[*make_messages("a", "b"), {"role": "root", "content": "c"}]
        )
    append("d")
    assert stored(session) == [(1, "d")]


def test_a_refused_batch_uses_no_seq():
    session = make_session()
    append("a", client_id="one")
    with pytest.raises(Conflict):
        append("b", "c", client_id="one")
    append("d")
    assert stored(session) == [(1, "a"), (2, "d")]


def test_the_database_rejects_a_duplicate_seq():
    session = make_session()
    append("a")
    Session.objects.filter(pk=session.pk).update(last_seq=0)
    with pytest.raises(MemoryUnavailable):
        append("b")
    assert stored(session) == [(1, "a")]


def test_the_database_rejects_a_floor_above_the_counter():
    session = make_session()
    with pytest.raises(IntegrityError), transaction.atomic():
        Session.objects.filter(pk=session.pk).update(first_seq=2)


def test_the_session_row_counts_messages_tokens_and_activity():
    session = make_session()
    append("a" * 40, "b")
    session.refresh_from_db()
    rows = Message.objects.filter(session=session)
    assert (session.last_seq, session.message_count) == (2, 2)
    assert session.tokens == sum(rows.values_list("tokens", flat=True)) > 10
    assert abs(session.last_message_at - datetime.now(UTC)) < timedelta(minutes=5)
    assert session.last_active_day == session.last_message_at.date()


def test_the_active_day_never_decreases():
    tomorrow = datetime.now(UTC).date() + timedelta(days=2)
    session = make_session(last_active_day=tomorrow)
    append("a")
    session.refresh_from_db()
    assert session.last_active_day == tomorrow


def test_a_repeated_client_id_stores_nothing_and_returns_the_first_seqs():
    session = make_session()
    first = append("a", "b", client_id="one")
    append("c")
    again = append("a", "b", client_id="one")
    assert again.is_duplicate
    assert (again.first_seq, again.last_seq) == (first.first_seq, first.last_seq)
    assert len(stored(session)) == 3


@pytest.mark.parametrize("texts", [("a",), ("a", "b", "c"), ("a", "B"), ("b", "a")])
def test_other_messages_with_a_known_client_id_are_a_conflict(texts):
    session = make_session()
    append("a", "b", client_id="one")
    with pytest.raises(Conflict):
        append(*texts, client_id="one")
    assert len(stored(session)) == 2


def test_the_same_text_with_another_role_is_a_conflict():
    make_session()
    append("a", client_id="one")
    with pytest.raises(Conflict):
        append_messages(**TALK, messages=[{"role": "assistant", "content": "a"}], client_id="one")


@pytest.mark.parametrize(
    ("one", "other"), [("Ab", "ab"), ("a-b", "a_b"), ("a.b", "a:b"), ("1", "01")]
)
def test_similar_client_ids_are_different(one, other):
    session = make_session()
    append("a", client_id=one)
    assert not append("b", client_id=other).is_duplicate
    assert append("a", client_id=one).is_duplicate
    assert stored(session) == [(1, "a"), (2, "b")]


@pytest.mark.parametrize("client_id", ["", "a" * 65, "a b", "ä", "a\n", 7])
def test_an_invalid_client_id_is_refused(client_id):
    with pytest.raises(BadInput):
        append("a", client_id=client_id)


def test_two_sessions_can_use_the_same_client_id():
    make_session("talk")
    make_session("other")
    append("a", client_id="one")
    assert not append("b", client_id="one", session_key="other").is_duplicate


def test_a_batch_without_a_client_id_gets_one():
    session = make_session()
    append("a", "b")
    given = Message.stored.filter(session=session).in_order().values_list("client_id", "batch")
    (first, size), rest = given
    assert len(first) == 22
    assert size == 2
    assert rest == (None, None)


def test_a_repeat_of_a_redacted_message_is_a_duplicate():
    session = make_session()
    append("a", client_id="one")
    Message.stored.filter(session=session).update(text="", body=None, redacted=True)
    assert append("a", client_id="one").is_duplicate


def test_a_trimmed_message_is_not_stored_again():
    session = make_session()
    append("a", client_id="one")
    append("b")
    trim_session(**TALK, keep_last=1, reason="")
    with pytest.raises(HistoryCleared):
        append("a", client_id="one")
    assert len(stored(session)) == 2


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": " \n\ttext with \ufffd, \U0001f469‍\U0001f680, עברית‎ "},
        {"role": "user", "content": "Straße", "id": "m1", "name": "Ann"},
        {"role": "system", "content": ""},
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "a"}, {"z": 1, "type": "odd", "a": None}],
            "tool_calls": [
                {"name": "f", "args": {"b": 1, "a": [1e22, 0.1, -0.0, 10**20]}, "id": "c1"}
            ],
            "usage": {"input_tokens": 1, "output_tokens": 2},
            "unknown_blocks": ["odd"],
        },
        {
            "role": "tool",
            "content": "42",
            "tool_call_id": "c1",
            "artifact": {"": [], "k": {}},
            "tool_status": "error",
        },
    ],
    ids=["text", "named", "empty", "blocks", "tool"],
)
def test_a_message_is_read_as_it_was_stored(message):
    make_session()
    append_messages(**TALK, messages=[message])
    [row] = read_history(**TALK).rows
    assert row.plain() == message
    assert repr(row.plain()) == repr(message)  # also the order of the keys


def test_an_undecodable_row_is_marked_and_hides_no_other():
    session = make_session()
    append("a", "b", "c")
    Message.stored.filter(session=session, seq=2).update(body='{"role": "assistant"')
    one, two, three = (row.plain() for row in read_history(**TALK).rows)
    assert (one["content"], three["content"]) == ("a", "c")
    assert two["quarantined"] is True


def test_two_users_with_the_same_key_have_separate_messages():
    ann, bob = make_user(), make_user()
    for user, text in ((ann, "the loan"), (bob, "the leak")):
        append(text, by=Actor.user(user), scope=None, create=True)
    mine = read_history(session_key="talk", by=Actor.user(ann))
    assert [row.text for row in mine.rows] == ["the loan"]


LOOK_ALIKES = ["talk", "Talk", "tälk", "talk ", " talk", "talk\t", "🦊", "🐻", "ß", "ss", "%", "_"]


def test_similar_keys_are_different():
    for key in LOOK_ALIKES[:5] + LOOK_ALIKES[6:]:
        append(key, session_key=key, create=True, client_id="one")
    for key in LOOK_ALIKES[:5] + LOOK_ALIKES[6:]:
        assert contents(key) == [key]


@pytest.mark.parametrize("key", [0, None, True, b"talk"])
def test_a_key_that_is_no_text_is_refused(key):
    session = make_session("talk")
    with pytest.raises(TypeError):
        append("a", session_key=key)
    session.refresh_from_db()
    assert session.last_seq == 0


@pytest.mark.parametrize("key", ["", "a" * 201, "a\0", "\ud800"])
@pytest.mark.parametrize("create", [False, True])
def test_a_key_that_a_database_cannot_store_is_refused_on_each(key, create):
    with pytest.raises(BadInput):
        append("a", session_key=key, create=create)


def test_an_unknown_session_is_not_found():
    with pytest.raises(NotFound):
        append("a")


def test_a_session_is_created_on_request():
    assert append("a", create=True).first_seq == 1
    assert contents() == ["a"]


def test_a_writer_with_an_epoch_creates_no_session():
    with pytest.raises(HistoryCleared):
        append("a", create=True, epoch=7)
    assert not Session.objects.exists()


def test_a_writer_that_started_before_a_clear_stores_nothing():
    session = make_session()
    clear_session(**TALK, reason="")
    with pytest.raises(HistoryCleared):
        append("a", epoch=session.epoch)
    assert stored(session) == []


def test_a_write_to_a_purged_session_does_not_reach_the_new_one_with_its_key():
    old = make_session()
    append("a", client_id="one")
    purge_session(**TALK, reason="")
    new = make_session()
    with pytest.raises(HistoryCleared):
        append("b", epoch=old.epoch)
    assert append("a", client_id="one").session_pk == new.pk != old.pk


def test_an_archived_session_refuses_messages():
    make_session(archived_at=LONG_AGO)
    with pytest.raises(Archived):
        append("a")


def test_nothing_is_stored_inside_a_running_turn():
    session = make_session()
    admit_turn(**TALK, client_id="run", content="hi", owner="me")
    with pytest.raises(Busy) as caught:
        append("a")
    assert caught.value.turn == "run"
    assert stored(session) == [(1, "hi")]


def test_an_append_ends_the_run_of_a_dead_process():
    session = make_session()
    admitted = admit_turn(**TALK, client_id="run", content="hi", owner="me")
    start_turn(claim=admitted.claim)
    Turn.objects.update(partial="so f", lease_until=LONG_AGO)
    append("a")
    assert stored(session) == [(1, "hi"), (2, "so f"), (3, "a")]


def test_nothing_is_stored_while_a_requeued_turn_waits():
    session = make_session()
    admit_turn(**TALK, client_id="run", content="hi", owner="me")
    Turn.objects.update(lease_until=LONG_AGO)
    with pytest.raises(Busy):
        append("a")
    assert stored(session) == [(1, "hi")]


WHY: list[tuple[dict[str, object], type[ChatMemoryError]]] = [
    ({"epoch": 1}, HistoryCleared),
    ({}, Archived),
]


@pytest.mark.parametrize(("changes", "error"), WHY)
def test_the_reasons_for_a_refusal_have_a_fixed_order(changes, error):
    make_session(archived_at=LONG_AGO, running="gone", epoch=2)
    with pytest.raises(error):
        append("a", **changes)


def test_a_replay_is_checked_before_all_other_reasons():
    make_session()
    append("a", client_id="one")
    Session.objects.update(archived_at=LONG_AGO, running="gone", epoch=2)
    assert append("a", client_id="one", epoch=1).is_duplicate


def test_a_removed_session_is_checked_before_all_other_reasons():
    make_session()
    append("a", client_id="one")
    Session.objects.update(archived_at=LONG_AGO, removed_at=LONG_AGO)
    with pytest.raises(NotFound):
        append("a", client_id="one")


def statements(call) -> int:
    with CaptureQueriesContext(connection) as queries:
        call()
    return len(queries)


@commits
def test_an_accepted_append_is_one_statement(postgresql):
    make_session()
    assert statements(lambda: append("a", "b")) == 1
    assert statements(lambda: append(*"a" * 100)) == 1


@commits
def test_a_refused_append_is_two_statements(postgresql):
    make_session()
    append("a", client_id="one")
    assert statements(lambda: append("a", client_id="one")) == 2


@commits
def test_an_append_in_a_callers_transaction_is_three_statements(postgresql):
    make_session()
    with transaction.atomic():
        assert statements(lambda: append("a", "b")) == 3


@commits
def test_an_append_on_other_databases_is_a_transaction_of_few_statements():
    within = {"postgresql": 1, "sqlite": 4, "mysql": 5}  # BEGIN and COMMIT are counted
    make_session()
    assert statements(lambda: append("a", "b")) == within[connection.vendor]


@commits
def test_an_append_is_rolled_back_with_the_callers_transaction():
    session = make_session()
    with transaction.atomic():
        append("a")
        transaction.set_rollback(True)
    with transaction.atomic():
        append("b")
    assert stored(session) == [(1, "b")]


@commits
def test_a_refusal_leaves_the_callers_transaction_usable():
    session = make_session()
    with transaction.atomic():
        append("a", client_id="one")
        with pytest.raises(Conflict):
            append("b", client_id="one")
        append("c")
    assert stored(session) == [(1, "a"), (2, "c")]


def lock_soon(seconds: int = 1) -> None:
    """Limit the lock waits of this connection."""
    patience = {
        "postgresql": f"SET LOCAL lock_timeout = '{seconds}s'",
        "mysql": f"SET innodb_lock_wait_timeout = {seconds}",
        "sqlite": "PRAGMA busy_timeout = 100",
    }
    with connection.cursor() as cursor:
        cursor.execute(patience[connection.vendor])


@commits
@pytest.mark.slow
def test_an_operational_error_marks_the_callers_transaction_for_rollback(monkeypatch):
    session = make_session()
    make_session("other")
    append("a")
    connection.close()
    is_sqlite = connection.vendor == "sqlite"
    if is_sqlite:
        monkeypatch.setitem(connection.settings_dict["OPTIONS"], "transaction_mode", "DEFERRED")

    def append_where_another_holds_the_lock() -> None:
        with transaction.atomic():
            lock_soon()
            Session.objects.filter(key="other").first()
            with held(session):
                append("b")

    with pytest.raises(MemoryUnavailable) as caught:
        append_where_another_holds_the_lock()
    connection.close()
    assert ("transaction_mode" in str(caught.value)) == is_sqlite
    assert stored(session) == [(1, "a")]


@commits
@pytest.mark.slow
def test_the_callers_transaction_is_rolled_back_even_if_the_error_is_caught():
    session = make_session()
    if connection.vendor == "sqlite":
        pytest.skip("one lock for all sessions: the other write would wait")
    with held(make_session("locked")), transaction.atomic():
        lock_soon()
        append("a")
        with pytest.raises(MemoryUnavailable):
            append("b", session_key="locked")
    connection.close()
    assert stored(session) == []


def test_a_change_is_announced_only_after_the_commit(django_capture_on_commit_callbacks):
    session = make_session()
    announced = []

    def listen(session_pk, **_):
        announced.append(session_pk)

    signals.session_changed.connect(listen)
    try:
        with django_capture_on_commit_callbacks() as callbacks:
            append("a")
        assert announced == []
        for callback in callbacks:
            callback()
    finally:
        signals.session_changed.disconnect(listen)
    assert announced == [session.pk]


@commits
def test_a_failing_receiver_does_not_fail_the_append():
    session = make_session()

    def fail(**_: object) -> None:
        raise RuntimeError

    signals.session_changed.connect(fail)
    try:
        append("a")
    finally:
        signals.session_changed.disconnect(fail)
    assert stored(session) == [(1, "a")]


@commits
@pytest.mark.slow
@override_settings(CHATMEMORY={"LOCK_TIMEOUT": 0.2})
def test_a_locked_session_is_unavailable_after_the_lock_timeout_and_delays_no_other():
    locked, other = make_session("locked"), make_session("other")
    if connection.vendor == "sqlite":
        pytest.skip("one lock for all sessions, and the host's timeout")
    with held(locked), thread() as call:
        waiting = call(append, "a", session_key="locked")
        append("b", session_key="other")
        with pytest.raises(MemoryUnavailable):
            waiting.result(timeout=5 * 3)
    assert (stored(locked), stored(other)) == ([], [(1, "b")])


@commits
@pytest.mark.parametrize(
    ("change", "error"),
    [
        ("running = 'run'", Busy),
        ("epoch = epoch + 1", HistoryCleared),
        ("removed_at = created_at", HistoryCleared),
        ("archived_at = created_at", Archived),
    ],
)
def test_an_append_that_waited_for_the_lock_sees_the_other_write(change, error):
    session = make_session()
    with second_connection() as other, thread() as call:
        other.set_autocommit(False)
        with other.cursor() as cursor:
            cursor.execute(f"UPDATE chatmemory_session SET {change}")  # noqa: S608  # ours
        waiting = call(append, "a", epoch=session.epoch)
        time.sleep(0.1)
        assert not waiting.done()
        other.commit()
        with pytest.raises(error):
            waiting.result(timeout=30)
    assert stored(session) == []


@commits
@override_settings(CHATMEMORY={"LOCK_TIMEOUT": 0.5})
def test_the_lock_timeout_does_not_remain_on_the_connection(postgresql):
    make_session()
    append("a")
    with connection.cursor() as cursor:
        cursor.execute("SHOW lock_timeout")
        assert cursor.fetchone() == ("0",)
    assert settings.LOCK_TIMEOUT == 0.5


@commits
@pytest.mark.slow
def test_an_append_whose_connection_is_killed_is_stored_exactly_once():
    session = make_session()
    if connection.vendor == "sqlite":
        pytest.skip("no server")
    with thread() as call:
        with held(session):
            waiting = call(append, "a", "b", client_id="one")
            kill_waiting_connections()
        done = waiting.result(timeout=10)
    assert (done.first_seq, done.last_seq) == (1, 2)
    assert append("a", "b", client_id="one").is_duplicate
    assert stored(session) == [(1, "a"), (2, "b")]


@commits
def test_an_append_succeeds_with_a_pool_of_dead_connections(postgresql):
    session = make_session()
    with second_connection() as other, other.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        append("a")
    assert stored(session) == [(1, "a")]


def updates() -> tuple[int, int]:
    """Return the number of updates of sessions, and of those that changed no index."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_force_next_flush()")
        cursor.execute(
            "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables "
            "WHERE relname = 'chatmemory_session'"
        )
        all_of_them, hot = cursor.fetchone()
    return all_of_them, hot


def hot_share(keys: list[str]) -> float:
    """Return the share of a thousand appends to these sessions that changed no index."""
    all_before, hot_before = updates()
    for number in range(1_000):
        append("a", "b", session_key=keys[number * 7 % len(keys)])
    all_after, hot_after = updates()
    assert all_after - all_before >= 1_000  # other connections may report theirs only now
    return (hot_after - hot_before) / (all_after - all_before)


@pytest.fixture
def roomy_pages(transactional_db, postgresql):
    """Leave space for each row version in the pages of sessions.

    When PostgreSQL removes old versions depends on transactions in all of its databases.
    """
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE chatmemory_session CASCADE")
        cursor.execute("ALTER TABLE chatmemory_session SET (fillfactor = 10)")
        yield
        cursor.execute("ALTER TABLE chatmemory_session SET (fillfactor = 85)")


@commits
@pytest.mark.long
def test_a_thousand_appends_update_no_index_of_the_session(roomy_pages):
    sessions = Session.objects.bulk_create(Session(scope=SERVER, key=f"s{n}") for n in range(500))
    keys = [session.key for session in sessions]
    for key in keys:
        append(
            "a", session_key=key
        )  # the first append of a day changes last_active_day and its index
    assert hot_share(keys) >= 0.99


@pytest.mark.parametrize("policy", ["reject", "defer"])
def test_the_author_of_a_message_is_kept(policy):
    make_session()
    claim = admit_turn(**TALK, client_id="run", content="hi", owner="me").claim
    given = {**TALK, "client_id": "by", "author": "operator:3", "if_busy": policy}
    if policy == "defer":
        assert append_messages(**given, messages=make_messages("a", "b")).is_deferred
        assert append_messages(**given, messages=make_messages("a", "b")).is_duplicate
        with pytest.raises(Conflict):
            append_messages(**{**given, "author": None}, messages=make_messages("a", "b"))
    finish_turn(claim=claim, status="complete", message={"role": "assistant", "content": "ok"})
    assert append_messages(**given, messages=make_messages("a", "b")).is_duplicate == (
        policy == "defer"
    )
    authors = Message.objects.in_order().values_list("author", flat=True)
    assert list(authors) == [None, None, "operator:3", "operator:3"]
    redact_message(**TALK, seq=3, reason="")
    assert Message.objects.get(seq=3).author == "operator:3"


@pytest.mark.parametrize("author", ["", "x" * 101, "a\0b"])
def test_an_author_that_cannot_be_stored_is_refused(author):
    with pytest.raises(BadInput) as refused:
        append_messages(**TALK, messages=make_messages("a"), author=author, create=True)
    assert refused.value.field == "author"
    assert not Session.objects.exists()


def test_people_pass_no_author():
    by = Actor.user(make_user())
    with pytest.raises(TypeError, match="A user writes in their own name; pass no author"):
        append_messages(
            session_key="talk", messages=make_messages("a"), by=by, author="user:2", create=True
        )
