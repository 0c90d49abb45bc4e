"""The window: the messages of a session that the model receives."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from chatmemory import codec
from chatmemory.codec import Question
from chatmemory.conf import settings
from chatmemory.database.faults import write_connection
from chatmemory.database.sql import Values
from chatmemory.database.statements import prepared_cursor
from chatmemory.logs import log_once
from chatmemory.models import (
    Message,
    Session,
    SupersededRange,
    Turn,
    is_current,
    superseded,
)

logger = logging.getLogger(__name__)

REDACTED = "[redacted]"
"""Replaces redacted content, since providers reject an empty text."""

MAX_FIRST_ROWS = 200
"""Maximum rows of the first read, whatever the session's mean predicts."""

MAX_ROWS = 1_000
"""Maximum rows of one read."""

_HIDDEN = re.compile(f"[{codec.HIDDEN}]")
"""Matches characters in which instructions can be hidden."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The model's input."""

    messages: list[dict[str, object]]
    """Plain messages in order, after a system message with the session's instructions."""
    tokens: int
    """The sum of the stored token counts; without instructions and added results."""
    is_over: bool
    """Whether the last turn alone exceeds the limits."""
    is_checked: bool
    """Whether one statement read all of it, and `only_if` was true for it."""
    may_answer: bool
    """Whether the message before the last one can contain a question; see `read_question`."""


class Stored(dict[str, object]):
    """A plain message of the window that is one row; WINDOW_JOIN makes others of two."""

    seq: int


def read_window(
    session: Session,
    *,
    only_if: Mapping[str, object] | None = None,
    before_last: Callable[[Mapping[str, object], int], Iterable[dict[str, object]]] | None = None,
) -> Window:
    """Read the newest messages within `WINDOW_TOKENS` and `WINDOW_MESSAGES`.

    `only_if` are columns of the session and their required values: without them there are no rows.
    `before_last` returns messages to be added before the last one, from this message and the seq of
    the oldest one.

    The window begins with a turn, so no tool call is separated from its result. If the whole
    history fits, system messages before its first turn are included. A last turn that alone exceeds
    the limits is included whole, with one warning for each session. A history without messages of a
    user is cut at any row.

    Excludes superseded and quarantined rows, empty replies, and results without a call. Redacted
    content becomes `[redacted]`, and a tool call without a result gets one that states this. Equal
    rows give equal windows. WINDOW_SYSTEM_FIRST and WINDOW_JOIN arrange the messages for providers.
    """
    limits = _limits()
    reader = _Reader(session, only_if or {})
    rows = _within(limits, reader)
    tokens = sum(row[2] for row in rows)
    messages = _instructions(session) + _with_results(reversed(rows))
    if before_last is not None and rows:
        messages[-1:-1] = before_last(messages[-1], rows[-1][0])
    window = Window(
        messages=arranged(messages),
        tokens=tokens,
        is_over=tokens > limits.tokens or len(rows) > limits.messages,
        is_checked=reader.count == 1 and reader.has_rows,
        may_answer=reader.may_answer,
    )
    if window.is_over:
        log_once(logger, logging.WARNING, _LONG_TURN, session.pk)
    return window


def read_question(session: Session, *, turn_pk: int, user_seq: int) -> Question | None:
    """Return the question in the message before this turn, if the turn can be its answer.

    An answer was sent after the question was stored, and does not replace it. A question with the
    thread of another session was copied from there, and cannot be answered.
    """
    before = Message.objects.filter(
        is_current(session, user_seq - 1, user_seq - 1),
        session=session,
        seq=user_seq - 1,
        role=Message.Role.ASSISTANT,
        status=Message.Status.COMPLETE,
        quarantined=False,
    )
    for role, text, body, asked_at in before.values_list("role", "text", "body", "created_at"):
        asks = Question.of(codec.decode(role, text, body))
        if asks is None or not asks.thread.startswith(f"{session.pk}."):
            return None
        turns = Turn.objects.filter(pk=turn_pk, session=session, user_seq=user_seq)
        is_answer = turns.filter(replaces_from__isnull=True, created_at__gte=asked_at).exists()
        return asks if is_answer else None
    return None


class _Limits(NamedTuple):
    tokens: float
    messages: float


_Candidate = tuple[int, bool, int, dict[str, object], Sequence[str]]
"""A row that can be in the window: its seq, whether a turn begins there, its tokens, the plain
message, the ids of its tool calls. A tuple for speed: there are many."""

# Raw SQL, since the ORM takes longer to build a statement than the database to run this one. Seqs
# have no gaps, so the range limits the rows read under any query plan; ORDER BY and LIMIT make
# PostgreSQL use the index (see docs/reasons/decisions/0003-window.md).
_READ_ROWS = """\
SELECT seq, role, text, body, tokens, redacted, quarantined,
    role = 'user' AND (turn IS NULL OR turn = seq),
    (SELECT superseded_to FROM {sessions} WHERE id = %(session_pk)s)
FROM {messages}
WHERE session_id = %(session_pk)s
    AND seq >= (
        SELECT CASE WHEN first_seq > {low} THEN first_seq ELSE {low} END
        FROM {sessions}
        WHERE {conditions}
    )
    {only_older}
ORDER BY seq DESC
LIMIT %(limit)s"""


def _limits() -> _Limits:
    tokens, messages = settings.WINDOW_TOKENS, settings.WINDOW_MESSAGES
    return _Limits(
        math.inf if tokens is None else tokens, math.inf if messages is None else messages
    )


def _within(limits: _Limits, reader: _Reader) -> list[_Candidate]:
    """Select whole turns within the limits, at least one, newest row first."""
    selected: list[_Candidate] = []
    total_tokens = 0
    turn_rows = 0  # the number of selected rows that form whole turns
    has_turn: bool | None = None
    for row in _candidates(limits, reader):
        seq, begins_turn, tokens, _, _ = row
        total_tokens += tokens
        if (total_tokens > limits.tokens or len(selected) >= limits.messages) and selected:
            # Above the limits, select the rest of the last turn, unless the history has no turn.
            if not turn_rows and has_turn is None:
                has_turn = begins_turn or reader.has_turn(seq)
            if turn_rows or not has_turn:
                return selected[: turn_rows or None]
        selected.append(row)
        if begins_turn:
            turn_rows = len(selected)
    if not turn_rows:
        return selected
    before = selected[turn_rows:]
    return selected[:turn_rows] + [row for row in before if row[3]["role"] == "system"]


def _candidates(limits: _Limits, reader: _Reader) -> Iterator[_Candidate]:
    """Yield rows that are neither superseded, quarantined nor empty, newest first."""
    newest = 0
    for rows in reader.chunks(_estimated_rows(limits, reader.session)):
        newest = newest or (rows[0][0] if rows else 0)
        ranges: list[SupersededRange] = []
        if rows and rows[-1][0] <= rows[-1][-1]:
            ranges = reader.superseded(rows[-1][0], newest)
        for seq, role, text, body, tokens, redacted, quarantined, begins_turn, _ in rows:
            if quarantined or (ranges and any(seq in found for found in ranges)):
                continue
            plain = Stored(codec.decode(role, text, body))
            plain.seq = seq
            if plain.get("quarantined") is True:
                continue
            if redacted:
                plain["content"] = REDACTED
            plain.pop("asks", None)  # the text contains the question
            call_ids: Sequence[str] = ()
            if role == "assistant":
                call_ids = codec.keep_named_calls(plain) if body is not None else ()
                if not call_ids and _is_empty(plain["content"]):
                    continue
            elif role != "system":
                plain["content"] = _without_hidden(plain["content"])
                begins_turn = begins_turn and not _has_only_results(plain["content"])
            yield seq, begins_turn, tokens, plain, call_ids


def _estimated_rows(limits: _Limits, session: Session) -> int:
    """Estimate how many rows fill the limits, from the mean tokens of the session's messages."""
    mean = max(session.tokens, 1) / max(session.last_seq, 1)
    likely = min(limits.tokens / mean, limits.messages)
    return int(min(1.125 * likely + 2, MAX_FIRST_ROWS))


class _Reader:
    """Reads the rows of a session, and counts its reads."""

    def __init__(self, session: Session, only_if: Mapping[str, object]) -> None:
        self.session = session
        self._only_if = only_if
        self.count = 0
        self.has_rows = False
        self.may_answer = False

    def chunks(self, limit: int) -> Iterator[list[tuple[Any, ...]]]:
        """Yield the rows, newest first: `limit` at first, then increasingly more at a time."""
        before: int | None = None
        while True:
            rows = self._read_below(before, limit)
            self.has_rows |= bool(rows)
            if before is None and len(rows) > 1:
                _, role, _, body, *_ = rows[1]
                # Most replies of models have a body, so its text is searched: `encode` wrote it.
                self.may_answer = role == Message.Role.ASSISTANT and '"asks":' in (body or "")
            yield rows
            if len(rows) < limit:
                return
            before = rows[-1][0]
            limit = min(4 * limit, MAX_ROWS)

    def has_turn(self, before: int) -> bool:
        """Whether a user's message precedes this row. Sessions of server code alone have none."""
        self.count += 1
        users = Message.objects.filter(role=Message.Role.USER, quarantined=False)
        return users.filter(session=self.session, seq__lt=before).exists()

    def superseded(self, low: int, newest: int) -> list[SupersededRange]:
        """Return the superseded ranges from `low` on, of turns up to the row `newest`."""
        self.count += 1
        return superseded(low, newest=newest, session=self.session)

    def _read_below(self, before: int | None, limit: int) -> list[tuple[Any, ...]]:
        """Read up to `limit` rows below the seq `before`, or the newest, newest first."""
        self.count += 1
        connection = write_connection()
        conditions = {"id": self.session.pk, **self._only_if}
        values = Values(connection, {f"is_{name}": value for name, value in conditions.items()})
        sql = _READ_ROWS.format(
            messages=values.quote(Message._meta.db_table),
            sessions=values.quote(Session._meta.db_table),
            conditions=values.equals(conditions),
            low="last_seq + 1 - %(limit)s" if before is None else "%(low)s",
            only_older="" if before is None else "AND seq < %(before)s",
        )
        parameters = {"session_pk": self.session.pk, "limit": limit, **values.parameters}
        if before is not None:
            parameters |= {"low": before - limit, "before": before}
        with prepared_cursor(connection) as cursor:
            cursor.execute(sql, parameters)
            rows: list[tuple[Any, ...]] = list(cursor.fetchall())
        return rows


def _instructions(session: Session) -> list[dict[str, object]]:
    return [{"role": "system", "content": session.instructions}] if session.instructions else []


def _with_results(selected: Iterable[_Candidate]) -> list[dict[str, object]]:
    """Place exactly one result directly after each tool call, as providers require.

    A result belongs to the earlier unanswered call with its id in the same turn, so rows that
    are added later never change the messages of an earlier window.
    """
    messages: list[dict[str, object]] = []
    awaited: dict[str, int] = {}
    for _, begins_turn, _, plain, call_ids in selected:
        is_result = plain["role"] == "tool" and plain.get("kind") != "function"
        results = [plain] if is_result else codec.take_results(plain)
        for result in results:
            call_id = codec.answered_call(result)
            if call_id is not None and call_id in awaited:
                messages[awaited.pop(call_id)] = result
        if begins_turn:
            awaited.clear()
        if is_result or (results and not plain["content"]):
            continue
        messages.append(plain)
        for call_id in call_ids:
            awaited[call_id] = len(messages)
            messages.append(codec.unknown_outcome(call_id))
    return messages


def arranged(messages: list[dict[str, object]]) -> list[dict[str, object]]:
    """Arrange the messages as WINDOW_SYSTEM_FIRST and WINDOW_JOIN require."""
    if settings.WINDOW_SYSTEM_FIRST:
        messages.sort(key=lambda message: message["role"] != "system")
    if not settings.WINDOW_JOIN:
        return messages
    joined: list[dict[str, object]] = []
    for message in messages:
        # Results of tools name their calls, so two of them stay two.
        if joined and joined[-1]["role"] == message["role"] != "tool":
            earlier = joined.pop()
            content = _joined_content(earlier["content"], message["content"])
            message = {**message, "content": content}
        joined.append(message)
    return joined


def _joined_content(first: object, second: object) -> object:
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"
    return [*_blocks(first), *_blocks(second)]


def _blocks(content: object) -> list[object]:
    return content if isinstance(content, list) else [{"type": "text", "text": content}]


def _has_only_results(content: object) -> bool:
    """Whether a user's content consists of results of tools, as in Anthropic's own messages."""
    return isinstance(content, list) and {"tool_result"} == {
        block.get("type") if isinstance(block, dict) else None for block in content
    }


def _is_empty(content: object) -> bool:
    match content:
        case str():
            return not content.strip()
        case list():
            return all(map(_is_empty, content))
        case {"type": "text", "text": str(text)}:
            return not text.strip()
        case _:
            return False


def _without_hidden(content: object) -> object:
    """Remove characters in which a person's or a tool's text can hide instructions."""
    match content:
        case str():
            return content if content.isascii() else _HIDDEN.sub("", content)
        case list():
            return [_without_hidden(block) for block in content]
        case dict():
            return {name: _without_hidden(value) for name, value in content.items()}
        case _:
            return content


_LONG_TURN = (
    "The last turn of session %s alone exceeds WINDOW_TOKENS or WINDOW_MESSAGES; "
    "the model receives it whole."
)
