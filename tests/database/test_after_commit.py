"""Signals and the log: each write is announced once, after its commit, without content."""

from __future__ import annotations

import logging
import re
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest
from asgiref.sync import async_to_sync
from django.db import InterfaceError, OperationalError, connection, transaction

from chatmemory import services, signals
from chatmemory.conf import settings
from chatmemory.database import after_commit
from chatmemory.database.after_commit import is_everything_delivered
from chatmemory.database.inserts import store_rows
from chatmemory.database.pool import in_pool
from chatmemory.database.threads import DaemonExecutor
from chatmemory.errors import ChatMemoryError
from chatmemory.models import AuditEntry, Session, Turn
from chatmemory.services.turns import progress, recovery
from chatmemory.services.turns.progress import (
    add_rows,
    astart_turn,
    finish_turn,
    save_partial,
    start_turn,
)
from tests.factories import TALK, make_messages, make_session
from tests.servers import DEADLINE, wait_for

pytestmark = [pytest.mark.database, pytest.mark.django_db(transaction=True)]

DOCS = Path(__file__).resolve().parents[2] / "docs/howto"
CANARY = "canary-5b1f"
USAGE = {"input_tokens": 8, "output_tokens": 3, "total_tokens": 11}


@contextmanager
def recorded(*recorded_signals):
    """Yield the list of the fields that these signals carry, in the order of the signals."""
    payloads = []

    def record(signal, sender, **fields):
        payloads.append(fields)

    for signal in recorded_signals:
        signal.connect(record)
    try:
        yield payloads
    finally:
        for signal in recorded_signals:
            signal.disconnect(record)


def begin(client_id="c1"):
    """Admit and start a turn; return its claim."""
    claim = services.admit_turn(**TALK, client_id=client_id, content=CANARY, owner="me").claim
    start_turn(claim=claim)
    return claim


def answer(claim, **changes):
    """End a turn with a reply, or as `changes` state."""
    ending = {"status": "complete", "message": make_messages("hi", CANARY)[1], "model": "m1"}
    finish_turn(claim=claim, **ending | changes)


def test_turn_finished_carries_what_a_metric_needs():
    make_session()
    with recorded(signals.turn_started, signals.turn_finished) as payloads:
        claim = begin()
        answer(claim, usage=USAGE)
    [started, ended] = payloads
    assert started == {"session_pk": claim.session_pk, "client_id": "c1"}
    assert 0 <= ended.pop("seconds") < 20
    assert 0 <= ended.pop("waited_seconds") < 20
    assert ended == {
        "session_pk": claim.session_pk,
        "client_id": "c1",
        "status": "complete",
        "error": "",
        "model": "m1",
        "input_tokens": 8,
        "output_tokens": 3,
    }


def cancel():
    begin()
    services.admit_turn(**TALK, client_id="c2", content="next")
    services.stop_turn(**TALK, turn="c2")
    return "c2"


def clear():
    begin()
    services.clear_session(**TALK, reason="test")
    return "c1"


def die():
    begin()
    Turn.objects.update(lease_until="2020-01-01T00:00Z")
    recovery.recover_all_overdue_turns()
    return "c1"


def fail():
    answer(begin(), status="failed", error="model_error", usage={"input_tokens": "many"})
    return "c1"


@pytest.mark.parametrize("end", [cancel, clear, die, fail], ids=lambda end: end.__name__)
def test_each_end_of_a_turn_is_sent_and_logged_once(caplog, end):
    make_session()
    with (
        recorded(signals.turn_finished) as payloads,
        caplog.at_level(logging.INFO, "chatmemory.turns"),
    ):
        client_id = end()
    turn = Turn.objects.get(client_id=client_id)
    [fields] = payloads
    assert (fields["client_id"], fields["status"]) == (client_id, turn.status)
    assert (fields["error"], fields["input_tokens"]) == (turn.error, None)
    assert (fields["seconds"] is None) == (turn.started_at is None)
    [line] = [entry.getMessage() for entry in caplog.records if entry.name == "chatmemory.turns"]
    assert line.startswith(f"turn={client_id} session={turn.session_id} status={turn.status} ")


def test_stored_rows_are_announced_once_with_their_seqs():
    session = make_session()
    with recorded(signals.messages_appended) as payloads:
        services.append_messages(**TALK, messages=make_messages("a", "b"), client_id="once")
        services.append_messages(**TALK, messages=make_messages("a", "b"), client_id="once")
        answer(begin())
    whose = {"session_pk": session.pk}
    assert payloads == [
        {**whose, "first_seq": 1, "last_seq": 2, "roles": ("user", "assistant"), "turn": None},
        {**whose, "first_seq": 3, "last_seq": 3, "roles": ("user",), "turn": 3},
        {**whose, "first_seq": 4, "last_seq": 4, "roles": ("assistant",), "turn": 3},
    ]


@pytest.mark.parametrize(
    ("act", "action", "messages"),
    [
        (lambda: services.trim_session(**TALK, keep_last=2, reason=CANARY), "trim", 2),
        (lambda: services.clear_session(**TALK, reason=CANARY), "clear", 4),
        (lambda: services.purge_session(**TALK, reason=CANARY), "purge", 4),
        (lambda: services.redact_message(**TALK, seq=2, reason=CANARY), "redact", 1),
    ],
)
def test_each_removal_is_announced(act, action, messages):
    session = make_session()
    services.append_messages(**TALK, messages=make_messages("a", "b", "c", "d"))
    with recorded(signals.history_removed) as removed, recorded(signals.action_recorded) as actions:
        act()
    assert removed == [{"session_pk": session.pk, "action": action, "messages": messages}]
    assert actions == [{**removed[0], "actor": "server"}]


def test_an_action_that_removes_nothing_sends_no_history_removed():
    session = make_session()
    with recorded(signals.history_removed) as removed, recorded(signals.action_recorded) as actions:
        services.archive_session(**TALK, reason="done")
    assert removed == []
    assert actions == [
        {"session_pk": session.pk, "action": "archive", "actor": "server", "messages": 0}
    ]


@pytest.mark.regression
def test_an_action_without_a_transaction_is_announced_after_its_entry():
    make_session()
    stored = []

    def count(**_):
        stored.append(AuditEntry.objects.count())

    signals.action_recorded.connect(count)
    try:
        services.begin_export(**TALK, format="jsonl", reason="")
    finally:
        signals.action_recorded.disconnect(count)
    assert stored == [1]


def test_a_write_that_is_rolled_back_sends_no_signal():
    make_session()
    with recorded(*all_signals()) as payloads, transaction.atomic():
        services.append_messages(**TALK, messages=make_messages("a", "b"))
        services.clear_session(**TALK, reason="test")
        transaction.set_rollback(True)
    assert payloads == []
    assert not AuditEntry.objects.exists()


def all_signals():
    return [found for found in vars(signals).values() if isinstance(found, signals.Signal)]


def test_a_failing_receiver_is_logged_and_stops_no_other(caplog):
    make_session()

    def fail(**_):
        raise RuntimeError("a bug of the host")

    for signal in all_signals():
        signal.connect(fail)
    try:
        answer(begin())
        services.clear_session(**TALK, reason="test")
    finally:
        for signal in all_signals():
            signal.disconnect(fail)
    assert Turn.objects.get().status == "complete"
    assert "fail failed: builtins.RuntimeError" in caplog.text
    assert "a bug of the host" not in caplog.text


@pytest.mark.regression
def test_a_log_filter_that_fails_does_not_fail_a_committed_turn(caplog):
    def fail(_):
        raise RuntimeError("a bug of the host")

    make_session()
    with caplog.at_level(logging.INFO, "chatmemory.turns"):
        after_commit.turns_log.addFilter(fail)
        try:
            answer(begin())
        finally:
            after_commit.turns_log.removeFilter(fail)
    assert Turn.objects.get().status == "complete"
    assert "a hook failed after the commit: builtins.RuntimeError" in caplog.text
    assert "a bug of the host" not in caplog.text


def add(claim):
    return add_rows(claim=claim, messages=[make_messages("hi", "there")[1]], step=0)


@pytest.mark.parametrize("write", [add, answer])
def test_a_commit_whose_answer_was_lost_is_announced_once(monkeypatch, write):
    make_session()
    claim = begin()
    lost = []

    def store_and_lose(*args, **given):
        stored = store_rows(*args, **given)
        if stored is not None and not lost:
            lost.append(stored)
            raise InterfaceError
        return stored

    monkeypatch.setattr(progress, "store_rows", store_and_lose)
    with recorded(signals.session_changed) as news, recorded(signals.turn_finished) as ends:
        write(claim)
    assert len(lost) == len(news) == 1
    assert [end["client_id"] for end in ends] == (["c1"] if write is answer else [])
    assert Session.objects.get().last_seq == 2


def test_an_unreadable_turn_is_announced_with_the_known_fields():
    make_session()
    claim = begin()

    def lose(execute, sql, params, many, context):
        if sql.startswith("SELECT") and "usage" in sql:
            raise OperationalError
        return execute(sql, params, many, context)

    with recorded(signals.turn_finished) as payloads, connection.execute_wrapper(lose):
        answer(claim)
    [fields] = payloads
    assert (fields["status"], fields["model"], fields["seconds"]) == ("complete", "", None)


def test_no_content_is_logged(caplog):
    caplog.set_level(logging.DEBUG, "chatmemory")
    make_session(title=CANARY, instructions=CANARY)
    claim = begin()
    save_partial(claim=claim, text=CANARY, step=0)
    call = {"id": "call1", "name": "look", "args": {"for": CANARY}}
    message = {"role": "assistant", "content": CANARY, "tool_calls": [call]}
    add_rows(claim=claim, messages=[message], step=0)
    services.admit_turn(**TALK, client_id="c2", content=CANARY)
    answer(claim, model="m1\nturn=forged", usage={**USAGE, "note": CANARY})
    Session.objects.update(last_seq=1)  # its next seq exists already
    with pytest.raises(ChatMemoryError):
        services.append_messages(**TALK, messages=make_messages(CANARY, CANARY))
    assert caplog.records
    for entry in caplog.records:
        if entry.name.startswith("chatmemory"):
            assert CANARY not in caplog.handler.format(entry)
            assert "\n" not in entry.getMessage()


class Metric:
    """The part of a Prometheus metric that the page uses."""

    instances: dict[str, Metric] = {}  # noqa: RUF012  # emptied by the test

    def __init__(self, name, text, labels):
        self.values = {}
        self.instances[name] = self

    def labels(self, *names):
        self.names = names
        return self

    def inc(self, by=1):
        self.values[self.names] = self.values.get(self.names, 0) + by

    observe = inc


def test_the_example_in_the_docs_counts_turns(monkeypatch):
    library = ModuleType("prometheus_client")
    library.Counter = library.Histogram = Metric
    monkeypatch.setitem(sys.modules, "prometheus_client", library)
    Metric.instances.clear()
    examples = re.findall(r"```python\n(.*?)```", (DOCS / "signals.md").read_text(), re.DOTALL)
    [lines] = [lines for lines in examples if "prometheus_client" in lines]
    names: dict[str, object] = {}
    exec(lines, names)  # noqa: S102  # our own page
    try:
        make_session()
        answer(begin(), usage=USAGE)
        services.append_messages(**TALK, messages=make_messages("a", "b"))
        answer(begin("c2"), status="failed", error="model_error", usage=USAGE)
    finally:
        signals.turn_finished.disconnect(names["count_turn"])
    assert Metric.instances["chat_turns"].values == {
        ("complete", "", "m1"): 1,
        ("failed", "model_error", "m1"): 1,
    }
    assert Metric.instances["chat_tokens"].values == {("input",): 16, ("output",): 6}
    assert list(Metric.instances["chat_turn_seconds"].values) == [("complete",), ("failed",)]


class Slow:
    """A receiver whose first call returns only after `go` is set."""

    def __init__(self):
        self.go = threading.Event()
        self.payloads = []
        self.threads = set()

    def __call__(self, signal, sender, **fields):
        self.threads.add(threading.current_thread().name.partition("_")[0])
        if not self.payloads:
            self.payloads.append(fields)
            assert self.go.wait(DEADLINE)
        else:
            self.payloads.append(fields)


@contextmanager
def slow_receiver(signal):
    receiver = Slow()
    signal.connect(receiver)
    try:
        yield receiver
    finally:
        receiver.go.set()
        wait_for(is_everything_delivered, "the receiver has not returned")
        signal.disconnect(receiver)


def append(texts):
    for text in texts:
        async_to_sync(services.aappend_messages)(
            **TALK, messages=make_messages(text), client_id=text
        )


def test_a_slow_receiver_delays_no_thread_of_the_pool():
    make_session()
    texts = [f"m{n}" for n in range(settings.DB_THREADS + 2)]
    with slow_receiver(signals.messages_appended) as receiver:
        append(texts)
        assert not is_everything_delivered()
    assert [fields["first_seq"] for fields in receiver.payloads] == [
        n + 1 for n in range(len(texts))
    ]
    assert receiver.threads == {"chatmemory-signals"}


def test_without_a_free_slot_the_committing_thread_sends(monkeypatch):
    monkeypatch.setattr(after_commit, "_free_slots", threading.Semaphore(1))
    make_session()
    with slow_receiver(signals.messages_appended) as receiver:
        append(["m0"])
        wait_for(lambda: bool(receiver.payloads), "nothing was sent")
        append(["m1"])
        assert [fields["first_seq"] for fields in receiver.payloads] == [1, 2]
    assert receiver.threads == {"chatmemory-signals", "chatmemory-db"}


@contextmanager
def delivered_to(receiver, signal=signals.turn_finished):
    """Connect a receiver; wait at the end until it has all that pool threads committed."""
    signal.connect(receiver)
    try:
        yield
        wait_for(is_everything_delivered, "the receiver has not returned")
    finally:
        signal.disconnect(receiver)


def answer_all(*client_ids):
    for client_id in client_ids:
        admitted = async_to_sync(services.aadmit_turn)(
            **TALK, client_id=client_id, content="hello", owner="me"
        )
        async_to_sync(astart_turn)(claim=admitted.claim)
        ending = {"status": "complete", "message": make_messages("hi", "there")[1], "model": "m1"}
        async_to_sync(in_pool(finish_turn))(claim=admitted.claim, **ending)


def test_a_transaction_that_a_receiver_leaves_open_is_rolled_back(caplog):
    make_session()
    other = make_session("other", title="before")
    payloads = []

    def leave_open(**fields):
        payloads.append((fields["client_id"], fields["model"], connection.in_atomic_block))
        transaction.atomic().__enter__()
        Session.objects.filter(pk=other.pk).update(title="never")
        list(Turn.objects.all())

    with delivered_to(leave_open):
        answer_all("c1", "c2", "c3")
    assert payloads == [("c1", "m1", False), ("c2", "m1", False), ("c3", "m1", False)]
    assert caplog.text.count("left a transaction open") == 3
    other.refresh_from_db()
    assert other.title == "before"


def test_a_receiver_that_raises_system_exit_is_logged_and_stops_no_other(caplog):
    make_session()
    payloads = []

    def end(**fields):
        payloads.append(fields["client_id"])
        raise SystemExit("enough")

    with delivered_to(end):
        answer_all("c1", "c2")
    assert payloads == ["c1", "c2"]
    assert caplog.text.count("a receiver failed: builtins.SystemExit") == 2


def test_without_a_new_thread_the_committing_thread_sends(monkeypatch):
    make_session()
    payloads, start = [], threading.Thread.start

    def start_another(thread):
        if thread.name.startswith("test-signals"):
            raise RuntimeError("can't start new thread")
        start(thread)

    def listen(**fields):
        payloads.append((fields["client_id"], threading.current_thread().name.partition("_")[0]))

    monkeypatch.setattr(after_commit, "_delivery_thread", DaemonExecutor(1, name="test-signals"))
    monkeypatch.setattr(after_commit, "_free_slots", threading.Semaphore(1))
    # Of optional apps, whose deliveries would occupy the slot
    monkeypatch.setattr(signals.messages_appended, "receivers", [])
    with delivered_to(listen):
        with monkeypatch.context() as scarce:
            scarce.setattr(threading.Thread, "start", start_another)
            answer_all("c1", "c2")
        answer_all("c3")
    assert payloads == [("c1", "chatmemory-db"), ("c2", "chatmemory-db"), ("c3", "test-signals")]
    after_commit._delivery_thread.shutdown()
