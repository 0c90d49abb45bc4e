"""Compare the services with a model: random calls, and the invariants after each call."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import transaction
from django.db.models import F, Max, Min
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from chatmemory import services
from chatmemory.errors import Busy, ChatMemoryError, Conflict, HistoryCleared, NotFound
from chatmemory.models import AuditEntry, Message, Session, Turn
from chatmemory.services import SERVER
from chatmemory.services.turns.claims import Claim
from chatmemory.window import REDACTED, read_window
from tests.factories import BY, make_messages
from tests.services.replaced import services_with

pytestmark = [pytest.mark.django_db, pytest.mark.database, pytest.mark.slow]

EXAMPLES = int(os.environ.get("CHATMEMORY_EXAMPLES", "8"))
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
KEYS = st.sampled_from(["a", "b"])
SMALL = st.integers(0, 6)


@dataclass
class Row:
    seq: int
    role: str
    text: str
    client_id: str | None = None
    batch: int = 1
    redacted: bool = False


@dataclass
class Removal:
    pk: int
    action: str
    start: int
    days: int = 0
    is_effective: bool = True


@dataclass
class Run:
    client_id: str
    claim: Claim | None
    user_seq: int
    has_started: bool


@dataclass
class Talk:
    """The expected state of a session."""

    key: str
    pk: int
    rows: dict[int, Row] = field(default_factory=dict)
    first: int = 1
    last: int = 0
    stored_from: int = 1
    epoch: int = 0
    run: Run | None = None
    held: bool = False
    removed_days: int | None = None
    removals: list[Removal] = field(default_factory=list)

    def visible(self) -> list[tuple[int, str, str]]:
        return [(r.seq, r.role, r.text) for r in self.rows.values() if r.seq >= self.first]

    def put(self, *rows: Row) -> None:
        for row in rows:
            self.last += 1
            self.rows[self.last] = replace(row, seq=self.last)

    def put_batch(self, client_id: str, size: int) -> None:
        rows = [Row(0, ("user", "assistant")[n % 2], client_id) for n in range(size)]
        self.put(replace(rows[0], client_id=client_id, batch=size), *rows[1:])

    def sent(self, client_id: str) -> Row | None:
        return next((r for r in self.rows.values() if r.client_id == client_id), None)


class Memory(RuleBasedStateMachine):
    """Random calls for two keys in one scope."""

    services: Any = services_with()

    def __init__(self) -> None:
        super().__init__()
        self.undo = transaction.atomic()
        self.undo.__enter__()
        self.active: dict[str, Talk] = {}
        self.purged: list[Talk] = []
        self.stale: list[Claim] = []
        self.number = 0
        self.sent: list[tuple[str, str, int]] = []

    def teardown(self) -> None:
        transaction.set_rollback(True)
        self.undo.__exit__(None, None, None)

    def at(self, key: str) -> dict[str, Any]:
        return {"session_key": key, "by": BY, "scope": SERVER}

    def new_name(self) -> str:
        self.number += 1
        return f"id{self.number}"

    def talk(self, key: str) -> Talk:
        """Return the session with this key; create it if it is missing."""
        if key not in self.active:
            session = self.services.open_session(**self.at(key))
            self.active[key] = Talk(key=key, pk=session.pk, epoch=session.epoch)
        return self.active[key]

    def append(self, key: str, client_id: str, size: int) -> Any:
        return self.services.append_messages(
            **self.at(key), messages=make_messages(*[client_id] * size), client_id=client_id
        )

    @rule(key=KEYS, size=st.integers(1, 5))
    def append_new(self, key: str, size: int) -> None:
        """Append a batch of new messages."""
        talk, client_id = self.talk(key), self.new_name()
        if talk.run is not None:
            with pytest.raises(Busy):
                self.append(key, client_id, size)
            return
        stored = self.append(key, client_id, size)
        assert (stored.first_seq, stored.last_seq) == (talk.last + 1, talk.last + size)
        talk.put_batch(client_id, size)
        self.sent.append((key, client_id, size))

    @precondition(lambda self: self.sent)
    @rule(data=st.data(), size=st.integers(1, 5))
    def resend(self, data: Any, size: int) -> None:
        """Repeat a batch, complete or partially, also in a newer session."""
        key, client_id, full_size = data.draw(st.sampled_from(self.sent))
        size = data.draw(st.sampled_from([size, full_size, full_size]))
        talk = self.talk(key)
        row = talk.sent(client_id)
        if row is None and talk.run is None:
            self.append(key, client_id, size)
            talk.put_batch(client_id, size)
            return
        expected: type[Exception] | None = Busy if row is None else None
        if row is not None and row.seq < talk.first:
            expected = HistoryCleared
        elif row is not None and size != row.batch:
            expected = Conflict
        if expected is not None:
            with pytest.raises(expected):
                self.append(key, client_id, size)
            return
        again = self.append(key, client_id, size)
        assert row is not None
        assert again.is_duplicate
        assert (again.first_seq, again.last_seq) == (row.seq, row.seq + row.batch - 1)

    @rule(key=KEYS, starts=st.booleans())
    def ask(self, key: str, starts: bool) -> None:
        talk, client_id = self.talk(key), self.new_name()
        send = {**self.at(key), "client_id": client_id, "content": client_id, "owner": "me"}
        send["if_busy"] = "reject"
        if talk.run is not None:
            with pytest.raises(Busy):
                self.services.admit_turn(**send)
            return
        claim = self.services.admit_turn(**send).claim
        assert claim is not None
        talk.put(Row(0, "user", client_id, client_id))
        assert claim.user_seq == talk.last
        talk.run = Run(client_id, claim, talk.last, starts)
        if starts:
            assert self.services.start_turn(claim=claim)

    def runs(self) -> list[Talk]:
        return [t for t in self.active.values() if t.run is not None and t.run.claim is not None]

    @precondition(lambda self: self.runs())
    @rule(data=st.data(), size=st.integers(0, 2), ends=st.booleans())
    def answer(self, data: Any, size: int, ends: bool) -> None:
        talk = data.draw(st.sampled_from(self.runs()))
        assert talk.run is not None
        messages = [{"role": "assistant", "content": f"r{n}"} for n in range(size)]
        assert self.services.add_rows(claim=talk.run.claim, messages=messages, step=None)
        talk.put(*(Row(0, "assistant", str(m["content"])) for m in messages))
        if not ends:
            return
        last = {"role": "assistant", "content": "done"}
        ended = self.services.finish_turn(claim=talk.run.claim, status="complete", message=last)
        talk.put(Row(0, "assistant", "done"))
        assert ended.last_seq == talk.last
        self.stale.append(talk.run.claim)
        talk.run = None

    @precondition(lambda self: any(talk.run is not None for talk in self.active.values()))
    @rule(data=st.data())
    def end_lease(self, data: Any) -> None:
        """Let a lease end: another process ends the turn, or claims it if it had not started."""
        talk = data.draw(st.sampled_from([t for t in self.active.values() if t.run is not None]))
        run = talk.run
        assert run is not None
        if run.claim is None:
            run.claim = self.services.claim_next(session_pk=talk.pk, owner="other")
            assert run.claim is not None
            assert run.claim.user_seq == run.user_seq
            return
        Turn.objects.filter(pk=run.claim.turn_pk).update(lease_until=LONG_AGO)
        assert self.services.recover_overdue_turn(talk.pk)
        self.stale.append(run.claim)
        if run.has_started:
            talk.put(Row(0, "assistant", ""))
            talk.run = None
        else:
            run.claim = None

    @precondition(lambda self: self.stale)
    @rule(data=st.data())
    def write_late(self, data: Any) -> None:
        claim = data.draw(st.sampled_from(self.stale))
        late = {"role": "assistant", "content": "late"}
        assert not self.services.save_partial(claim=claim, text="late", step=1)
        assert not self.services.add_rows(claim=claim, messages=[late], step=None)
        assert self.services.finish_turn(claim=claim, status="complete", message=late) is None

    def end_run(self, talk: Talk) -> None:
        if talk.run is not None and talk.run.claim is not None:
            self.stale.append(talk.run.claim)
        talk.run = None

    @rule(key=KEYS, keep=SMALL)
    def trim(self, key: str, keep: int) -> None:
        talk = self.talk(key)
        if talk.held:
            return
        wanted = talk.last - keep + 1
        floor = talk.first
        if wanted > talk.first:
            users = [
                s for s, r in talk.rows.items() if r.role == "user" and talk.first <= s <= wanted
            ]
            floor = max(users, default=talk.first)
            if wanted > talk.last and talk.run is None:
                floor = wanted
            if talk.run is not None:
                floor = max(talk.first, min(floor, talk.run.user_seq))
        entry = self.services.trim_session(**self.at(key), keep_last=keep, reason="")
        assert (entry is None) == (floor == talk.first)
        if entry is not None:
            talk.removals.append(Removal(entry.pk, "trim", talk.first))
            talk.first = floor

    @rule(key=KEYS, purges=st.booleans())
    def clear(self, key: str, purges: bool) -> None:
        talk = self.talk(key)
        if talk.held:
            return
        act = self.services.purge_session if purges else self.services.clear_session
        entry = act(**self.at(key), reason="")
        self.hide_all(talk, entry)
        if purges:
            self.mark_purged(talk)

    def hide_all(self, talk: Talk, entry: AuditEntry) -> None:
        talk.removals.append(Removal(entry.pk, entry.action, talk.first))
        talk.first = talk.last + 1
        self.end_run(talk)

    def mark_purged(self, talk: Talk) -> None:
        talk.removed_days = 0
        self.purged.append(self.active.pop(talk.key))

    @rule(key=KEYS)
    def expire(self, key: str) -> None:
        talk = self.talk(key)
        if talk.held or talk.run is not None:
            return
        Session.objects.filter(pk=talk.pk).update(expires_at=LONG_AGO)
        with pytest.raises(NotFound):
            self.services.read_page(**self.at(key))
        self.services.expire_sessions()
        self.hide_all(talk, AuditEntry.objects.filter(session_pk=talk.pk).latest("pk"))
        self.mark_purged(talk)

    @precondition(lambda self: any(t.removals for t in [*self.active.values(), *self.purged]))
    @rule(data=st.data())
    def restore(self, data: Any) -> None:
        talks = [t for t in [*self.active.values(), *self.purged] if t.removals]
        talk = data.draw(st.sampled_from(talks))
        removal = data.draw(st.sampled_from(talk.removals))
        undone = [r for r in talk.removals if r.is_effective and r.pk >= removal.pk]
        moves = any(r.action != "trim" for r in (removal, *undone))
        is_purged = talk.removed_days is not None
        call = {"entry_pk": removal.pk, "by": BY, "scope": SERVER, "reason": ""}
        expected: type[Exception] | None = None
        if removal.start < talk.stored_from or not undone:
            expected = Conflict
        elif moves and talk.run is not None:
            expected = Busy
        elif is_purged and talk.key in self.active:
            expected = Conflict
        if expected is not None:
            with pytest.raises(expected):
                self.services.restore_session(**call)
            return
        self.services.restore_session(**call)
        for found in undone:
            found.is_effective = False
        talk.first = removal.start
        if is_purged:
            talk.removed_days = None
            self.purged.remove(talk)
            self.active[talk.key] = talk

    @rule(key=KEYS, place=SMALL)
    def redact(self, key: str, place: int) -> None:
        talk = self.talk(key)
        seq = talk.stored_from + place
        if talk.held or seq > talk.last:
            return
        self.services.redact_message(**self.at(key), seq=seq, reason="")
        talk.rows[seq].text, talk.rows[seq].redacted = "", True

    @rule(key=KEYS)
    def hold(self, key: str) -> None:
        talk = self.talk(key)
        act = self.services.release_session if talk.held else self.services.hold_session
        assert act(**self.at(key), reason="")
        talk.held = not talk.held

    @rule(days=st.sampled_from([11, 40]))  # no sum is 30, the days at which either is right
    def age_all(self, days: int) -> None:
        ago = timedelta(days=days)
        AuditEntry.objects.update(created_at=F("created_at") - ago)
        Session.objects.update(removed_at=F("removed_at") - ago)
        for talk in (*self.active.values(), *self.purged):
            for removal in talk.removals:
                removal.days += days
            if talk.removed_days is not None:
                talk.removed_days += days

    @rule(chunk=st.sampled_from([1, 3, 100]))
    def vacuum(self, chunk: int) -> None:
        self.services.vacuum(chunk=chunk)
        for talk in [*self.active.values(), *self.purged]:
            if talk.held:
                continue
            is_past = talk.removed_days is not None and talk.removed_days > 30
            young = [r.start for r in talk.removals if r.days <= 30]
            limit = talk.first if is_past else min([talk.first, *young])
            talk.stored_from = max(talk.stored_from, limit)
            talk.rows = {s: row for s, row in talk.rows.items() if s >= talk.stored_from}
            if is_past:
                self.purged.remove(talk)
                assert not Session.objects.filter(pk=talk.pk).exists()

    @rule(key=KEYS, after=SMALL, limit=st.integers(1, 4), before=SMALL)
    def page(self, key: str, after: int, limit: int, before: int) -> None:
        talk = self.talk(key)
        visible = [row[0] for row in talk.visible()]
        pages: list[tuple[dict[str, int], list[int]]] = [
            ({}, visible[-limit:]),
            ({"after": after}, [s for s in visible if s > after][:limit]),
            ({"before": before}, [s for s in visible if s < before][-limit:]),
        ]
        for asked, seqs in pages:
            page = self.services.read_page(**self.at(key), limit=limit, **asked)
            assert [row.seq for row in page.rows] == seqs

    @invariant()
    def sessions_match_the_model(self) -> None:
        for talk in self.active.values():
            page = self.services.read_history(**self.at(talk.key))
            assert [(row.seq, row.role, row.text) for row in page.rows] == talk.visible()
            newest = self.services.read_page(**self.at(talk.key), before=talk.last + 1, limit=4)
            assert newest.rows == page.rows[-4:]
            assert page.head.running == (talk.run.client_id if talk.run else None)
            assert page.head.pk == talk.pk

    @invariant()
    def seqs_have_no_gaps(self) -> None:
        for talk in (*self.active.values(), *self.purged):
            row = Session.objects.get(pk=talk.pk)
            assert (row.first_seq, row.last_seq) == (talk.first, talk.last)
            assert row.stored_from == talk.stored_from
            stored = Message.stored.filter(session=talk.pk)
            count = talk.last - talk.stored_from + 1
            ends = stored.aggregate(lowest=Min("seq"), highest=Max("seq"))
            assert stored.count() == count == len(talk.rows)
            assert not count or ends == {"lowest": talk.stored_from, "highest": talk.last}

    @invariant()
    def window_matches_the_model(self) -> None:
        for talk in self.active.values():
            given = read_window(Session.objects.get(pk=talk.pk)).messages
            visible = [row for row in talk.rows.values() if row.seq >= talk.first]
            assert [(plain["role"], plain["content"]) for plain in given] == [
                (row.role, REDACTED if row.redacted else row.text)
                for row in visible
                if row.text or row.redacted
            ]

    @invariant()
    def active_turns_match_their_sessions(self) -> None:
        live = Turn.objects.filter(status__in=["waiting", "running"])
        runs = {talk.run.client_id for talk in self.active.values() if talk.run}
        assert set(live.values_list("client_id", flat=True)) == runs


def check(machine: type[Memory], examples: int, **more: Any) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples, stateful_step_count=30, database=None, print_blob=True, **more
        ),
    )


@pytest.mark.hypothesis
def test_the_memory_behaves_like_the_model():
    check(Memory, EXAMPLES)


def seqs_by_maximum(**of: Any) -> Any:
    """Delete rows at a trim, and continue from the highest seq that is left."""
    entry = services.trim_session(**of)
    if entry is not None:
        session = Session.objects.get(pk=entry.session_pk or 0)
        Message.stored.filter(session=session, seq__lt=session.first_seq).delete()
        last = Message.stored.filter(session=session).aggregate(highest=Max("seq"))["highest"] or 0
        Session.objects.filter(pk=session.pk).update(
            last_seq=last, first_seq=min(session.first_seq, last + 1), stored_from=1
        )
    return entry


def without_client_id(**of: Any) -> Any:
    return services.append_messages(**{**of, "client_id": None})


def page_below_the_floor(**of: Any) -> Any:
    with transaction.atomic():
        same = Session.objects.filter(key=of["session_key"], removed_at=None)
        same.update(first_seq=F("stored_from"))
        page = services.read_page(**of)
        transaction.set_rollback(True)
    return page


@pytest.mark.long
@pytest.mark.parametrize(
    "fault",
    [
        {"trim_session": seqs_by_maximum},
        {"append_messages": without_client_id},
        {"read_page": page_below_the_floor},
    ],
    ids=["max+1 after trim", "no de-duplication", "floor ignored by one read"],
)
def test_a_planted_fault_is_found(fault):
    class Faulty(Memory):
        services = services_with(**fault)

    with pytest.raises((AssertionError, ChatMemoryError, pytest.fail.Exception)):
        check(Faulty, 100, derandomize=True, phases=[Phase.generate], report_multiple_bugs=False)
