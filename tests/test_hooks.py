"""Signals and the log: each act is told of once, after its commit, without what was said."""

from __future__ import annotations

import logging
import re
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import InterfaceError, OperationalError, connection, transaction

from chatmemory import services, signals
from chatmemory.conf import settings
from chatmemory.errors import ChatMemoryError
from chatmemory.models import AuditEntry, Session, Turn
from chatmemory.services import Actor, news, runs
from chatmemory.services.news import has_told_all
from chatmemory.services.rows import store
from chatmemory.threads import DaemonExecutor
from tests.factories import make_session, said
from tests.servers import DEADLINE, wait_for

pytestmark = [pytest.mark.database, pytest.mark.django_db(transaction=True)]

DOCS = Path(__file__).resolve().parent.parent / "docs"
TALK: dict[str, Any] = {"session_key": "talk", "by": Actor.server("test"), "scope": "server"}
CANARY = "canary-5b1f"
USAGE = {"input_tokens": 8, "output_tokens": 3, "total_tokens": 11}


@contextmanager
def heard(*wanted):
    """What these signals carry, in the order in which they come."""
    told = []

    def listen(signal, sender, **about):
        told.append(about)

    for signal in wanted:
        signal.connect(listen)
    try:
        yield told
    finally:
        for signal in wanted:
            signal.disconnect(listen)


def begin(client_id="c1"):
    claim = services.admit_turn(**TALK, client_id=client_id, content=CANARY, owner="me").claim
    services.start_turn(claim=claim)
    return claim


def answer(claim, **more):
    given = {"status": "complete", "message": said("hi", CANARY)[1], "model": "m1"}
    services.finish_turn(claim=claim, **given | more)


def test_the_end_of_a_turn_says_what_a_metric_needs():
    make_session()
    with heard(signals.turn_started, signals.turn_finished) as told:
        claim = begin()
        answer(claim, usage=USAGE)
    [started, ended] = told
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
    services.end_all_overdue()
    return "c1"


def fail():
    answer(begin(), status="failed", error="model_error", usage={"input_tokens": "many"})
    return "c1"


@pytest.mark.parametrize("end", [cancel, clear, die, fail], ids=lambda end: end.__name__)
def test_each_end_of_a_turn_is_told_of_and_logged_once_whoever_ended_it(caplog, end):
    make_session()
    with heard(signals.turn_finished) as told, caplog.at_level(logging.INFO, "chatmemory.turns"):
        client_id = end()
    turn = Turn.objects.get(client_id=client_id)
    [about] = told
    assert (about["client_id"], about["status"]) == (client_id, turn.status)
    assert (about["error"], about["input_tokens"]) == (turn.error, None)
    assert (about["seconds"] is None) == (turn.started_at is None)
    [line] = [entry.getMessage() for entry in caplog.records if entry.name == "chatmemory.turns"]
    assert line.startswith(f"turn={client_id} session={turn.session_id} status={turn.status} ")


def test_rows_that_are_stored_are_told_of_once_with_their_place():
    session = make_session()
    with heard(signals.messages_appended) as told:
        services.append_messages(**TALK, messages=said("a", "b"), client_id="once")
        services.append_messages(**TALK, messages=said("a", "b"), client_id="once")
        answer(begin())
    whose = {"session_pk": session.pk}
    assert told == [
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
def test_what_is_removed_is_told_of(act, action, messages):
    session = make_session()
    services.append_messages(**TALK, messages=said("a", "b", "c", "d"))
    with heard(signals.history_removed) as removed, heard(signals.act_recorded) as acts:
        act()
    assert removed == [{"session_pk": session.pk, "action": action, "messages": messages}]
    assert acts == [{**removed[0], "actor": "server"}]


def test_an_act_that_removes_nothing_is_told_of_as_that():
    session = make_session()
    with heard(signals.history_removed) as removed, heard(signals.act_recorded) as acts:
        services.archive_session(**TALK, reason="done")
    assert removed == []
    assert acts == [
        {"session_pk": session.pk, "action": "archive", "actor": "server", "messages": 0}
    ]


def test_of_what_is_rolled_back_nothing_is_told():
    make_session()
    with heard(*vars_of_signals()) as told, transaction.atomic():
        services.append_messages(**TALK, messages=said("a", "b"))
        services.clear_session(**TALK, reason="test")
        transaction.set_rollback(True)
    assert told == []
    assert not AuditEntry.objects.exists()


def vars_of_signals():
    return [found for found in vars(signals).values() if isinstance(found, signals.Signal)]


def test_a_receiver_that_fails_is_logged_and_stops_nobody(caplog):
    make_session()

    def fail(**_):
        raise RuntimeError("a mistake of the host's")

    for signal in vars_of_signals():
        signal.connect(fail)
    try:
        answer(begin())
        services.clear_session(**TALK, reason="test")
    finally:
        for signal in vars_of_signals():
            signal.disconnect(fail)
    assert Turn.objects.get().status == "complete"
    assert "fail failed: builtins.RuntimeError" in caplog.text
    assert "a mistake of the host's" not in caplog.text


@pytest.mark.regression
def test_a_log_filter_that_fails_does_not_fail_a_committed_turn(caplog):
    def fail(_):
        raise RuntimeError("a mistake of the host's")

    make_session()
    with caplog.at_level(logging.INFO, "chatmemory.turns"):
        news.turns_log.addFilter(fail)
        try:
            answer(begin())
        finally:
            news.turns_log.removeFilter(fail)
    assert Turn.objects.get().status == "complete"
    assert "a hook failed after the commit: builtins.RuntimeError" in caplog.text
    assert "a mistake of the host's" not in caplog.text


def add(claim):
    return services.add_rows(claim=claim, messages=[said("hi", "there")[1]], step=0)


@pytest.mark.parametrize("write", [add, answer])
def test_what_was_committed_though_its_answer_was_lost_is_told_of_once(monkeypatch, write):
    make_session()
    claim = begin()
    lost = []

    def store_and_lose(*args, **given):
        stored = store(*args, **given)
        if stored is not None and not lost:
            lost.append(stored)
            raise InterfaceError
        return stored

    monkeypatch.setattr(runs, "store", store_and_lose)
    with heard(signals.session_changed) as news, heard(signals.turn_finished) as ends:
        write(claim)
    assert len(lost) == len(news) == 1
    assert [end["client_id"] for end in ends] == (["c1"] if write is answer else [])
    assert Session.objects.get().last_seq == 2


def test_a_turn_that_is_gone_or_can_not_be_read_is_told_of_with_what_is_known():
    make_session()
    claim = begin()

    def lose(execute, sql, params, many, context):
        if sql.startswith("SELECT") and "usage" in sql:
            raise OperationalError
        return execute(sql, params, many, context)

    with heard(signals.turn_finished) as told, connection.execute_wrapper(lose):
        answer(claim)
    [about] = told
    assert (about["status"], about["model"], about["seconds"]) == ("complete", "", None)


def test_nothing_that_was_said_is_logged(caplog):
    caplog.set_level(logging.DEBUG, "chatmemory")
    make_session(title=CANARY, instructions=CANARY)
    claim = begin()
    services.save_partial(claim=claim, text=CANARY, step=0)
    call = {"id": "call1", "name": "look", "args": {"for": CANARY}}
    message = {"role": "assistant", "content": CANARY, "tool_calls": [call]}
    services.add_rows(claim=claim, messages=[message], step=0)
    services.admit_turn(**TALK, client_id="c2", content=CANARY)
    answer(claim, model="m1\nturn=forged", usage={**USAGE, "note": CANARY})
    Session.objects.update(last_seq=1)  # its next number is taken
    with pytest.raises(ChatMemoryError):
        services.append_messages(**TALK, messages=said(CANARY, CANARY))
    assert caplog.records
    for entry in caplog.records:
        if entry.name.startswith("chatmemory"):
            assert CANARY not in caplog.handler.format(entry)
            assert "\n" not in entry.getMessage()


class Metric:
    """What the page uses of a metric."""

    made: dict[str, Metric] = {}  # noqa: RUF012  # emptied by the test

    def __init__(self, name, text, labels):
        self.values = {}
        self.made[name] = self

    def labels(self, *names):
        self.names = names
        return self

    def inc(self, by=1):
        self.values[self.names] = self.values.get(self.names, 0) + by

    observe = inc


def test_the_lines_in_the_docs_feed_metrics(monkeypatch):
    library = ModuleType("prometheus_client")
    library.Counter = library.Histogram = Metric
    monkeypatch.setitem(sys.modules, "prometheus_client", library)
    Metric.made.clear()
    [lines] = re.findall(r"```python\n(.*?)```", (DOCS / "hooks.md").read_text(), re.DOTALL)
    names: dict[str, object] = {}
    exec(lines, names)  # noqa: S102  # our own page
    try:
        make_session()
        answer(begin(), usage=USAGE)
        services.append_messages(**TALK, messages=said("a", "b"))
        answer(begin("c2"), status="failed", error="model_error", usage=USAGE)
    finally:
        signals.turn_finished.disconnect(names["count_turn"])
    assert Metric.made["chat_turns"].values == {
        ("complete", "", "m1"): 1,
        ("failed", "model_error", "m1"): 1,
    }
    assert Metric.made["chat_tokens"].values == {("input",): 16, ("output",): 6}
    assert list(Metric.made["chat_turn_seconds"].values) == [("complete",), ("failed",)]


class Slow:
    """A receiver that does not return before it may."""

    def __init__(self):
        self.go = threading.Event()
        self.told = []
        self.threads = set()

    def __call__(self, signal, sender, **about):
        self.threads.add(threading.current_thread().name.partition("_")[0])
        if not self.told:
            self.told.append(about)
            assert self.go.wait(DEADLINE)
        else:
            self.told.append(about)


@contextmanager
def slow(signal):
    receiver = Slow()
    signal.connect(receiver)
    try:
        yield receiver
    finally:
        receiver.go.set()
        wait_for(has_told_all, "the receiver is still at it")
        signal.disconnect(receiver)


def append(texts):
    for text in texts:
        async_to_sync(services.aappend_messages)(**TALK, messages=said(text), client_id=text)


def test_a_slow_receiver_holds_up_no_thread_that_sockets_wait_for():
    make_session()
    texts = [f"m{n}" for n in range(settings.DB_THREADS + 2)]
    with slow(signals.messages_appended) as receiver:
        append(texts)
        assert not has_told_all()
    assert [about["first_seq"] for about in receiver.told] == [n + 1 for n in range(len(texts))]
    assert receiver.threads == {"chatmemory-signals"}


def test_what_finds_no_room_behind_a_slow_receiver_is_told_by_who_committed(monkeypatch):
    monkeypatch.setattr(news, "_room", threading.Semaphore(1))
    make_session()
    with slow(signals.messages_appended) as receiver:
        append(["m0"])
        wait_for(lambda: bool(receiver.told), "nothing is told")
        append(["m1"])
        assert [about["first_seq"] for about in receiver.told] == [1, 2]
    assert receiver.threads == {"chatmemory-signals", "chatmemory-db"}


@contextmanager
def told_apart_to(receiver, signal=signals.turn_finished):
    """To receive what threads of the pool commit; it is told when the block is over."""
    signal.connect(receiver)
    try:
        yield
        wait_for(has_told_all, "the receiver is still at it")
    finally:
        signal.disconnect(receiver)


def answer_all(*client_ids):
    for client_id in client_ids:
        asked = async_to_sync(services.aadmit_turn)(
            **TALK, client_id=client_id, content="hello", owner="me"
        )
        async_to_sync(services.astart_turn)(claim=asked.claim)
        given = {"status": "complete", "message": said("hi", "there")[1], "model": "m1"}
        async_to_sync(services.afinish_turn)(claim=asked.claim, **given)


def test_a_transaction_that_a_receiver_leaves_open_is_rolled_back(caplog):
    make_session()
    other = make_session("other", title="before")
    told = []

    def leave_open(**about):
        told.append((about["client_id"], about["model"], connection.in_atomic_block))
        transaction.atomic().__enter__()
        Session.objects.filter(pk=other.pk).update(title="never")
        list(Turn.objects.all())

    with told_apart_to(leave_open):
        answer_all("c1", "c2", "c3")
    assert told == [("c1", "m1", False), ("c2", "m1", False), ("c3", "m1", False)]
    assert caplog.text.count("left a transaction open") == 3
    other.refresh_from_db()
    assert other.title == "before"


def test_a_receiver_that_would_end_the_process_is_logged_and_stops_nobody(caplog):
    make_session()
    told = []

    def end(**about):
        told.append(about["client_id"])
        raise SystemExit("enough")

    with told_apart_to(end):
        answer_all("c1", "c2")
    assert told == ["c1", "c2"]
    assert caplog.text.count("a receiver failed: builtins.SystemExit") == 2


def test_where_the_system_gives_no_thread_who_committed_tells(monkeypatch):
    make_session()
    told, start = [], threading.Thread.start

    def start_another(thread):
        if thread.name.startswith("test-signals"):
            raise RuntimeError("can't start new thread")
        start(thread)

    def listen(**about):
        told.append((about["client_id"], threading.current_thread().name.partition("_")[0]))

    monkeypatch.setattr(news, "_teller", DaemonExecutor(1, name="test-signals"))
    monkeypatch.setattr(news, "_room", threading.Semaphore(1))
    with told_apart_to(listen):
        with monkeypatch.context() as scarce:
            scarce.setattr(threading.Thread, "start", start_another)
            answer_all("c1", "c2")
        answer_all("c3")
    assert told == [("c1", "chatmemory-db"), ("c2", "chatmemory-db"), ("c3", "test-signals")]
    news._teller.shutdown()
