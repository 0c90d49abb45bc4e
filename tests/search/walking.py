"""Random histories of conversations, and what a search of them must find."""

from __future__ import annotations

import random
import zlib
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pytest
from django.conf import settings
from django.test import override_settings

from chatmemory.database.locks import lock_pk, locked_transaction
from chatmemory.errors import ChatMemoryError, NotFound
from chatmemory.formats.exporting import export_sessions
from chatmemory.formats.importing import Target, import_lines
from chatmemory.models import AuditEntry, Message, Session, SessionQuerySet, Turn
from chatmemory.models import superseded as superseded_ranges
from chatmemory.search import indexing, models, reading, search_messages, searching
from chatmemory.search.analysis import Mode, Query, folded_words
from chatmemory.search.blocks import Block, BlockRow, pack
from chatmemory.search.indexing import index_all, index_session
from chatmemory.search.integrity import drop_index, find_wrong_blocks
from chatmemory.search.models import SearchBlock
from chatmemory.search.scoring import Part, Scored, Why, matching, score
from chatmemory.search.searching import Order, analyzer
from chatmemory.services import (
    SERVER,
    Actor,
    admit_turn,
    adopt_visitor,
    append_messages,
    clear_session,
    erase_person,
    purge_session,
    redact_message,
    redact_turn,
    restore_session,
    set_feedback,
    trim_session,
)
from chatmemory.services.integrity.database_restore import recover_restored_database
from chatmemory.services.integrity.sessions import check_integrity
from chatmemory.services.removal.vacuum import vacuum
from chatmemory.services.removal.withdrawal import restore_rows, withdraw_rows
from chatmemory.services.turns.progress import finish_turn
from tests.factories import BY, make_user, make_visitor

WORDS = (
    "kettle",
    "kettles",
    "invoice",
    "refund",
    "green",
    "the",
    "käse",
    "Straße",
    "注文",
    "注文する",
)
NAMES = (None, None, "Ann", "Bob Stone")
ROLES = ("user", "assistant", "user", "assistant", "system")
KEYS = ("a", "b")
FIRST_JAPANESE = "\u3000"
RARE = 0.08
"""The share of steps that change all conversations of a person."""
LONG_AGO = datetime(2024, 5, 1, tzinfo=UTC)

QUERIES = (
    "kettle", "kettles green", "invoice refund kettle", "the", "in", "ket", "gre", "käse strasse",
    "注文", "refund in may 2024",
    "what did ann say about kettles", "zq1x zq2x", "zq", "green kettle",
)  # fmt: skip
MODES: tuple[Mode, ...] = ("words", "prefix", "phrase")
ORDERS: tuple[Order, ...] = ("rank", "newest")


def small_blocks(patch: pytest.MonkeyPatch, rows: int) -> None:
    """Let a block have a few messages only, so that a short history has several."""
    for module in (models, reading, indexing, searching):
        patch.setattr(module, "BLOCK_ROWS", rows)


class World:
    """The conversations of a server, a user and a visitor, which change at random."""

    def __init__(self, seed: int) -> None:
        self.chosen = random.Random(seed)  # noqa: S311  # no secret
        self.user = Actor.user(make_user())
        self.guest = make_visitor().actor
        self.scopes = [SERVER, self.user.owner, self.guest.owner]
        self.written = self.turns = self.copies = 0
        self.damaged: set[int] = set()
        """The primary keys of blocks with damaged bytes."""
        self.bodies: dict[int, str | None] = {}
        """The bodies of damaged messages."""
        self.entries: list[AuditEntry] = []
        self.withdrawn: list[tuple[int, int, int]] = []
        for _ in range(3):
            self.append()
        self.events = [
            *([self.append] * 6),
            *([self.run_turn, self.edit, self.edit]),
            *([self.index] * 4),
            *(self.redact, self.redact_a_turn, self.withdraw, self.undo_withdrawal),
            *(self.trim, self.clear, self.purge, self.restore, self.restore),
            *(self.damage_row, self.repair_row, self.rate, self.vacuum, self.expire),
            *(self.index_everything, self.lose_blocks, self.age_blocks, self.damage_block),
        ]
        self.rare = [self.adopt, self.erase, self.copy, self.drop, self.restore_database]

    def step(self) -> str:
        """Change something; return what."""
        event = self.chosen.choice(self.rare if self.chosen.random() < RARE else self.events)
        try:
            event()
        except ChatMemoryError as error:
            return f"{event.__name__} ({error.code})"
        return str(event.__name__)

    def address(self) -> dict[str, Any]:
        scope = self.chosen.choice([SERVER, *self.scopes])
        return {"session_key": self.chosen.choice(KEYS), "by": BY, "scope": scope}

    def session(self) -> Session:
        """Return a session that can be read."""
        found = list(Session.objects.active().order_by("pk"))
        if not found:
            raise NotFound
        return self.chosen.choice(found)

    def text(self) -> str:
        self.written += 1
        words = [*self.chosen.choices(WORDS, k=self.chosen.randrange(1, 6)), f"zq{self.written}x"]
        self.chosen.shuffle(words)
        return " ".join(words)

    def seq(self, session: Session) -> int:
        return self.chosen.randint(session.first_seq, max(session.first_seq, session.last_seq))

    def append(self) -> None:
        messages: list[dict[str, object]] = []
        for _ in range(self.chosen.randrange(1, 5)):
            message: dict[str, object] = {"role": self.chosen.choice(ROLES), "content": self.text()}
            if name := self.chosen.choice(NAMES):
                message["name"] = name
            messages.append(message)
        done = append_messages(**self.address(), messages=messages, create=True)
        new = Message.stored.filter(session=done.session_pk, seq__gte=done.first_seq)
        # Before any block can have them; as an import may give them.
        new.update(created_at=LONG_AGO + timedelta(minutes=self.chosen.randrange(100_000)))

    def run_turn(self, address: dict[str, Any] | None = None, **more: Any) -> None:
        self.turns += 1
        address = address or {**self.address(), "create": True}
        claim = admit_turn(
            **address, client_id=f"t{self.turns}", content=self.text(), owner="me", **more
        ).claim
        assert claim is not None
        reply = {"role": "assistant", "content": self.text()}
        finish_turn(claim=claim, status="complete", message=reply)

    def edit(self) -> None:
        session = self.session()
        turns = Turn.objects.filter(session=session, user_seq__gte=session.first_seq)
        starts = list(turns.order_by("user_seq").values_list("user_seq", flat=True))
        if not starts:
            raise NotFound
        newest = Message.objects.filter(session=session, role="user").in_order().last()
        assert newest is not None
        self.run_turn(
            address_of(session), replaces=self.chosen.choice(starts), expect_seq=newest.seq
        )

    def rate(self) -> None:
        turn = f"t{self.chosen.randint(1, max(1, self.turns))}"
        set_feedback(**address_of(self.session()), turn=turn, value=self.chosen.choice((1, -1)))

    def redact(self) -> None:
        session = self.session()
        redact_message(**address_of(session), seq=self.seq(session), reason="")

    def redact_a_turn(self) -> None:
        """Redact what a turn has outside of messages."""
        turn = f"t{self.chosen.randint(1, max(1, self.turns))}"
        Turn.objects.filter(client_id=turn).update(partial="kettle")
        redact_turn(**address_of(self.session()), turn=turn, reason="")

    def withdraw(self) -> None:
        session = self.session()
        low = self.seq(session)
        high = min(session.last_seq, low + self.chosen.randrange(3))
        with locked_transaction():
            withdraw_rows(lock_pk(session.pk), low, high)
        self.withdrawn.append((session.pk, low, high))

    def undo_withdrawal(self) -> None:
        if self.withdrawn:
            session_pk, low, high = self.chosen.choice(self.withdrawn)
            with locked_transaction():
                restore_rows(lock_pk(session_pk), low, high)

    def trim(self) -> None:
        session = self.session()
        entry = trim_session(**address_of(session), before_seq=self.seq(session), reason="")
        self.entries += [entry] if entry else []

    def clear(self) -> None:
        self.entries.append(clear_session(**address_of(self.session()), reason=""))

    def purge(self) -> None:
        self.entries.append(purge_session(**address_of(self.session()), reason=""))

    def restore(self) -> None:
        if self.entries:
            entry = self.chosen.choice(self.entries[-3:])
            scope = self.chosen.choice(self.scopes)
            restore_session(entry_pk=entry.pk, by=BY, scope=scope, reason="")

    def damage_row(self) -> None:
        session = self.session()
        rows = Message.stored.filter(session=session, seq=self.seq(session), redacted=False)
        for pk, body in rows.values_list("pk", "body"):
            self.bodies.setdefault(pk, body)
        rows.update(body="{")
        self.check_rows()

    def repair_row(self) -> None:
        if self.bodies:
            pk, body = self.bodies.popitem()
            Message.stored.filter(pk=pk, redacted=False).update(body=body)
            self.check_rows()

    def check_rows(self) -> None:
        list(check_integrity(repair_by=BY))

    def vacuum(self) -> None:
        with override_settings(CHATMEMORY={**settings.CHATMEMORY, "UNDO_DAYS": 0}):
            vacuum(chunk=self.chosen.randrange(1, 5))

    def expire(self) -> None:
        """Let a session expire, or all expired ones be there again."""
        if self.chosen.random() < 0.5:
            Session.objects.filter(pk=self.session().pk).update(expires_at=LONG_AGO)
        else:
            Session.objects.filter(expires_at=LONG_AGO).update(expires_at=None)

    def index(self) -> None:
        index_session(self.session().pk, min_rows=self.chosen.choice((1, 1, 3)))

    def index_everything(self) -> None:
        index_all()

    def drop(self) -> None:
        drop_index()

    def lose_blocks(self) -> None:
        """Let some blocks be missing, as in a dump."""
        pks = list(SearchBlock.objects.order_by("pk").values_list("pk", flat=True))
        lost = [pk for pk in pks if self.chosen.random() < 0.3]
        SearchBlock.objects.filter(pk__in=lost).delete()

    def age_blocks(self) -> None:
        """Let a block be of another analyzer."""
        self.change_block(analyzer="0:old")

    def damage_block(self) -> None:
        cut = self.chosen.randrange(20)
        pk = self.change_block(postings=self.chosen.choice((b"", b"\1" * 64, bytes(cut))))
        self.damaged.add(pk)

    def change_block(self, **columns: Any) -> int:
        pks = list(SearchBlock.objects.order_by("pk").values_list("pk", flat=True))
        if not pks:
            raise NotFound
        pk = self.chosen.choice(pks)
        SearchBlock.objects.filter(pk=pk).update(**columns)
        return int(pk)

    def adopt(self) -> None:
        adopt_visitor(by=self.user, visitor=self.guest)

    def erase(self) -> None:
        erase_person(by=BY, scope=self.chosen.choice(self.scopes), reason="")

    def copy(self) -> None:
        """Export a session, and import it under another key."""
        session = self.session()
        self.copies += 1
        text = "".join(export_sessions(Session.objects.filter(pk=session.pk), format="jsonl"))
        lines = list(enumerate(map(str.encode, text.splitlines()), 1))
        target = Target(by=BY, scope=SERVER, prefix=f"copy{self.copies}")
        for outcome in import_lines(lines, target=target):
            assert outcome.error is None, outcome.error

    def restore_database(self) -> None:
        recover_restored_database(by=BY, reason="")

    # What must be true after each step.

    def check_blocks(self) -> None:
        """Assert that no block has a removed word, or other messages than it states."""
        wrong = [(one.session_pk, one.low, one.problem) for one in find_wrong_blocks()]
        damaged = SearchBlock.objects.filter(pk__in=self.damaged)
        assert set(wrong) <= {
            (pk, low, "other messages") for pk, low in damaged.values_list("session", "low")
        }
        stored: dict[int, set[str]] = defaultdict(set)
        for session_pk, text in Message.stored.values_list("session", "text"):
            stored[session_pk].update(analyzer().terms(text))
        for session_pk, words in SearchBlock.objects.values_list("session", "words"):
            kept = set(zlib.decompress(bytes(words)).decode().split("\n")) - {""}
            assert kept <= stored[session_pk]

    def check_search(self, *, ways: int) -> None:
        """Assert that searches find exactly what is in the messages."""
        for _ in range(ways):
            scope = self.chosen.choice(self.scopes)
            way: dict[str, Any] = {
                "query": self.chosen.choice(QUERIES),
                "mode": self.chosen.choice(MODES),
                "order": self.chosen.choice(ORDERS),
                "superseded": self.chosen.random() < 0.3,
            }
            assert found(scope=scope, limit=self.chosen.choice((1, 3, 50)), **way) == expected(
                Session.objects.active().filter(scope=scope), **way
            ), way


def address_of(session: Session) -> dict[str, Any]:
    return {"session_key": session.key, "by": BY, "scope": session.scope}


class Ranked(NamedTuple):
    """A hit, as far as the messages determine it."""

    session_pk: int
    seq: int
    score: float
    why: Why
    text: str


def found(**arguments: Any) -> list[Ranked]:
    """Return the hits of all pages of a search."""
    hits = []
    cursor = None
    for _page in range(1_000):
        page = search_messages(by=BY, cursor=cursor, **arguments)
        hits += [Ranked(hit.session_pk, hit.seq, hit.score, hit.why, hit.text) for hit in page.hits]
        cursor = page.cursor
        if cursor is None:
            return hits
    raise AssertionError("The search does not end.")


def expected(
    sessions: SessionQuerySet, *, query: str, mode: Mode, order: Order, superseded: bool
) -> list[Ranked]:
    """Return what a search must find, from the messages alone."""
    parsed = analyzer().parse(query, mode)
    parts: list[Part] = []
    texts: dict[tuple[int, int], str] = {}
    for session in sessions.order_by("pk"):
        rows = shown_rows(session, superseded=superseded)
        texts.update({(session.pk, row.seq): row.text for row in rows})
        parts += [
            part_of(session.pk, some)
            for some in (rows[at : at + 100] for at in range(0, len(rows), 100))
        ]
    if order == "newest":
        ranked = [
            Scored(*place, 0.0, Why)
            for place in matching(parts, parsed)
            if not parsed.prefix or contains(parsed.of_prefix(), texts[place])
        ]
    else:
        ranked = score(parts, parsed, is_by_role=False)
    hits = [
        Ranked(one.session, one.seq, one.score, one.why, texts[one.session, one.seq])
        for one in ranked
        if analyzer().matches(parsed, texts[one.session, one.seq])
    ]
    if order == "rank":
        with_terms = {place for place, text in texts.items() if contains(parsed, text)}
        assert {hit[:2] for hit in hits} == with_terms, (parsed, texts)
    return hits


def shown_rows(session: Session, *, superseded: bool) -> list[Message]:
    rows = Message.objects.filter(session=session, redacted=False, quarantined=False)
    hidden = [] if superseded else superseded_ranges(1, session=session)
    return [
        row
        for row in rows.in_order()
        if row.role != "system" and not any(row.seq in one for one in hidden)
    ]


def part_of(session_pk: int, rows: list[Message]) -> Part:
    """Pack rows, with other bounds than blocks have."""
    low = rows[0].seq
    packed = pack(
        [
            BlockRow(
                place=row.seq - low,
                role=row.role,
                name=name_of(row),
                created_at=row.created_at,
                terms=analyzer().terms(row.text),
            )
            for row in rows
        ]
    )
    return Part(session_pk, low, Block(packed.postings, packed.words))


def name_of(row: Message) -> str | None:
    name = row.plain().get("name")
    return name if isinstance(name, str) else None


def contains(query: Query, text: str) -> bool:
    """Return whether a text has what a query asks for, by its terms or words alone."""
    if query.mode == "phrase":
        return spaced(query.words) in spaced(folded_words(text))
    terms = analyzer().terms(text)
    is_found = bool(set(terms) & {*query.terms, query.prefix_term})
    if query.prefix:
        is_found |= any(word.startswith(query.prefix) for word in folded_words(text))
    return is_found


def spaced(words: Iterable[str]) -> str:
    """Join words; each character of the Japanese ones is a word."""
    parts = [" ".join(word) if word >= FIRST_JAPANESE else word for word in words]
    return f" {' '.join(parts)} "
