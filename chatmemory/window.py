"""The window: what of a session's history the model is given."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from django.db import connections

from chatmemory import codec
from chatmemory.codec import Asks
from chatmemory.conf import settings
from chatmemory.models import Message, Session, Turn

logger = logging.getLogger(__name__)

REDACTED = "[redacted]"
"""Stands in for what was redacted: providers refuse an empty text."""

MOST_AT_FIRST = 200
"""Rows read at first, at most, whatever the session's mean says."""

MOST = 1_000
"""Rows read at a time, at most."""

_HIDDEN = re.compile(f"[{codec.HIDDEN}]")
"""Where instructions hide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What the model is given."""

    messages: list[dict[str, object]]
    """Plain messages in order, the session's instructions before them as one of the system's."""
    tokens: int
    """What those stored count, as counted when they were; instructions and repairs don't."""
    is_over: bool
    """The last turn alone is over the limits."""


def read_window(session: Session) -> Window:
    """The newest messages within `WINDOW_TOKENS` and `WINDOW_MESSAGES`.

    It begins where a turn does, so no tool call is torn from its result; where the whole history
    fits, system messages before its first turn stay before it. A last turn that alone is over the
    limits is given whole, and logged once for each session. A history in which no user speaks is
    cut anywhere.

    Left out are superseded and quarantined rows, empty replies, and results of no call. What was
    redacted is given as `[redacted]`, and a tool call without a result one that says so. The same
    rows give the same list.
    """
    limits = _limits()
    rows = _within(limits, session)
    tokens = sum(row[2] for row in rows)
    window = Window(
        messages=_instructions(session) + _paired(reversed(rows)),
        tokens=tokens,
        is_over=tokens > limits.tokens or len(rows) > limits.messages,
    )
    if window.is_over:
        _warn_once(session.pk)
    return window


def read_question(session: Session, *, turn_pk: int, user_seq: int) -> Asks | None:
    """What the message right before this turn's asks, if this turn's user can have meant that.

    An answer was sent after the question was stored, and does not replace it. What asks on the
    thread of another session was copied from there.
    """
    before = Message.objects.filter(
        session=session,
        seq=user_seq - 1,
        role=Message.Role.ASSISTANT,
        status=Message.Status.COMPLETE,
        quarantined=False,
    )
    for role, text, body, asked_at in before.values_list("role", "text", "body", "created_at"):
        asks = Asks.of(codec.decode(role, text, body))
        if asks is None or not asks.thread.startswith(f"{session.pk}."):
            return None
        turns = Turn.objects.filter(pk=turn_pk, session=session, user_seq=user_seq)
        is_answer = turns.filter(replaces_from__isnull=True, created_at__gte=asked_at).exists()
        return asks if is_answer else None
    return None


class _Limits(NamedTuple):
    tokens: float
    messages: float


_Given = tuple[int, bool, int, dict[str, object], Sequence[str]]
"""A row that is given: its number, whether a turn begins there, its tokens, the plain message, the
ids of the tool calls in it. Plain tuples: there are many."""


def _limits() -> _Limits:
    tokens, messages = settings.WINDOW_TOKENS, settings.WINDOW_MESSAGES
    return _Limits(
        math.inf if tokens is None else tokens, math.inf if messages is None else messages
    )


def _within(limits: _Limits, session: Session) -> list[_Given]:
    """What is given, newest first: whole turns, at least one."""
    given: list[_Given] = []
    total = whole = 0
    has_turn: bool | None = None
    for row in _givable(limits, session):
        seq, begins_turn, tokens, _, _ = row
        total += tokens
        if (total > limits.tokens or len(given) >= limits.messages) and given:
            if not whole and has_turn is None:
                has_turn = begins_turn or _has_turn(session, seq)
            if whole or not has_turn:
                return given[: whole or None]
        given.append(row)
        if begins_turn:
            whole = len(given)
    if not whole:
        return given
    return given[:whole] + [row for row in given[whole:] if row[3]["role"] == "system"]


def _has_turn(session: Session, before: int) -> bool:
    """Whether a user spoke before this row: not where only server code writes."""
    spoken = Message.objects.filter(
        session=session, seq__lt=before, role=Message.Role.USER, quarantined=False
    )
    return spoken.exists()


def _givable(limits: _Limits, session: Session) -> Iterator[_Given]:
    """Rows that are neither superseded, quarantined nor empty, from the newest back."""
    newest = 0
    for rows in _chunks(session, _likely_enough(limits, session)):
        newest = newest or (rows[0][0] if rows else 0)
        superseded: list[tuple[int, int]] = []
        if rows and rows[-1][0] <= rows[-1][-1]:
            # What began after the newest row was read supersedes nothing here.
            turns = Turn.objects.filter(session=session, user_seq__lte=newest)
            superseded = turns.superseded(rows[-1][0])
        for seq, role, text, body, tokens, redacted, quarantined, begins_turn, _ in rows:
            if quarantined or (superseded and any(a <= seq <= b for a, b in superseded)):
                continue
            plain = codec.decode(role, text, body)
            if plain.get("quarantined") is True:
                continue
            if redacted:
                plain["content"] = REDACTED
            plain.pop("asks", None)  # the text says it
            call_ids: Sequence[str] = ()
            if role == "assistant":
                call_ids = _named_calls(plain) if body is not None else ()
                if not call_ids and _says_nothing(plain["content"]):
                    continue
            elif role != "system":
                plain["content"] = _without_hidden(plain["content"])
            yield seq, begins_turn, tokens, plain, call_ids


def _chunks(session: Session, limit: int) -> Iterator[list[tuple[Any, ...]]]:
    """A session's rows from the newest back: `limit` of them at first, then ever more at a time."""
    before: int | None = None
    while True:
        rows = _read(session, before, limit)
        yield rows
        if len(rows) < limit:
            return
        before = rows[-1][0]
        limit = min(4 * limit, MOST)


def _likely_enough(limits: _Limits, session: Session) -> int:
    """How many rows are likely to fill the limits, by the mean of all messages of the session."""
    mean = max(session.tokens, 1) / max(session.last_seq, 1)
    likely = min(limits.tokens / mean, limits.messages)
    return int(min(1.125 * likely + 2, MOST_AT_FIRST))


def _read(session: Session, before: int | None, limit: int) -> list[tuple[Any, ...]]:
    # Not through the ORM, which takes longer to make a statement than the database to run this one.
    # The numbers have no holes: the range bounds what is read however the database goes about it,
    # ORDER BY and LIMIT lead PostgreSQL to the index (see docs/decisions/0003-window.md).
    connection = connections[Message.stored.all().db]
    quote = connection.ops.quote_name
    message, sessions = (quote(m._meta.db_table) for m in (Message, Session))
    if before is None:
        low, bound, high, highest = "last_seq + 1 - %s", limit, "", []
    else:
        low, bound, high, highest = "%s", before - limit, "AND seq < %s", [before]
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT seq, role, text, body, tokens, redacted, quarantined, "  # noqa: S608  # names only
            "role = 'user' AND (turn IS NULL OR turn = seq), "
            f"(SELECT superseded_to FROM {sessions} WHERE id = %s) "
            f"FROM {message} WHERE session_id = %s AND seq >= "
            f"(SELECT CASE WHEN first_seq > {low} THEN first_seq ELSE {low} END "
            f"FROM {sessions} WHERE id = %s) {high} ORDER BY seq DESC LIMIT %s",
            [session.pk, session.pk, bound, bound, session.pk, *highest, limit],
        )
        return list(cursor.fetchall())


def _instructions(session: Session) -> list[dict[str, object]]:
    return [{"role": "system", "content": session.instructions}] if session.instructions else []


def _paired(given: Iterable[_Given]) -> list[dict[str, object]]:
    """The messages with exactly one result right behind each tool call, as providers insist.

    A result belongs to the call of its id in the same turn that stands before it and has none; so
    what is added later changes no message that was given before.
    """
    messages: list[dict[str, object]] = []
    awaited: dict[str, int] = {}
    for _, begins_turn, _, plain, call_ids in given:
        if begins_turn:
            awaited.clear()
        if plain["role"] == "tool" and plain.get("kind") != "function":
            call_id = codec.answered_call(plain)
            if call_id is not None and call_id in awaited:
                messages[awaited.pop(call_id)] = plain
            continue
        messages.append(plain)
        for call_id in call_ids:
            awaited[call_id] = len(messages)
            messages.append(codec.unknown_outcome(call_id))
    return messages


def _named_calls(plain: dict[str, object]) -> list[str]:
    """Leave out the calls that no result can name, and return the ids of the others.

    Those are the calls without an id, and those with the id of another.
    """
    ids: list[str] = []
    for key in codec.CALLS:
        calls = plain.get(key)
        if not isinstance(calls, list):
            continue
        named = []
        for call in calls:
            call_id = call.get("id") if isinstance(call, dict) else None
            if isinstance(call_id, str) and call_id and call_id not in ids:
                ids.append(call_id)
                named.append(call)
        plain[key] = named
    return ids


def _says_nothing(content: object) -> bool:
    match content:
        case str():
            return not content.strip()
        case list():
            return all(map(_says_nothing, content))
        case {"type": "text", "text": str(text)}:
            return not text.strip()
        case _:
            return False


def _without_hidden(content: object) -> object:
    """A content without characters in which a person's or a tool's text hides instructions."""
    match content:
        case str():
            return content if content.isascii() else _HIDDEN.sub("", content)
        case list():
            return [_without_hidden(block) for block in content]
        case dict():
            return {name: _without_hidden(value) for name, value in content.items()}
        case _:
            return content


@lru_cache(maxsize=10_000)
def _warn_once(session_pk: int) -> None:
    logger.warning(
        "The last turn of session %s alone is over WINDOW_TOKENS or WINDOW_MESSAGES; "
        "the model is given it whole.",
        session_pk,
    )
