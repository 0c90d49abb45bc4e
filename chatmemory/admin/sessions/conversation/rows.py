"""Messages as the transcript shows them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from functools import cached_property
from itertools import groupby

from django.utils import timezone
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from chatmemory import codec
from chatmemory.admin.sessions.conversation.history import PastAction
from chatmemory.admin.sessions.conversation.turns import TurnLine, Turns
from chatmemory.admin.text import truncate, visible
from chatmemory.models import Feedback, Message, Session, SupersededRange, Turn
from chatmemory.rendering.json import formatted_args
from chatmemory.rendering.markdown import markdown
from chatmemory.rendering.rows import RowRenderer, is_markdown, person_of
from chatmemory.rendering.text import has_markup

MAX_TEXT_CHARS = 8_000
"""The transcript truncates longer messages; the page of a message shows all of it."""

MAX_CALL_CHARS = 2_000
MAX_RAW_CHARS = 4_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A tool call of a message."""

    name: str
    args: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptRow:
    """A message as the transcript shows it."""

    seq: int
    role: str
    role_name: str
    text: str
    html: SafeString | None
    """The text as rendered Markdown; None if it is shown as written."""
    is_cut: bool
    calls: list[Call]
    reasoning: str
    raw: str
    """The stored JSON; empty for a message that has only a role and a text."""
    notes: list[str]
    model: str
    tokens: int
    created_at: datetime
    day: date | None
    """The day, on its first message on the page."""
    is_removed: bool
    is_redacted: bool
    redaction: PastAction | None
    feedback: str
    """The value and the reason of the feedback on its turn; empty without one."""
    is_rated_bad: bool
    turn: TurnLine | None
    """On the last message of a turn on the page."""
    unstored: UnstoredText | None
    """The text of its turn that a removal ended before it was stored, on the same message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnstoredText:
    """The text of a turn that is not stored as a message, as the transcript shows it."""

    turn_pk: int
    role: str
    role_name: str
    status: str
    text: str
    html: SafeString | None
    is_cut: bool
    is_removed: bool = False
    created_at: datetime
    age: str = ""
    """For how long the turn runs or waits; empty for an ended one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Consecutive messages, folded if they are superseded."""

    rows: list[TranscriptRow]
    superseded: SupersededRange | None
    is_open: bool = False


@dataclass(frozen=True, kw_only=True)  # no slots, because of the cached property
class Transcript:
    """Builds the rows of a page."""

    session: Session
    turns: Turns
    redactions: Mapping[int, PastAction] = field(default_factory=dict)
    is_source: bool = False
    """Whether texts are shown as written, without Markdown."""
    max_chars: int = MAX_TEXT_CHARS
    max_raw_chars: int = MAX_RAW_CHARS

    @cached_property
    def renderer(self) -> RowRenderer:
        """Renders the messages of this page, up to the limits of one response."""
        return RowRenderer(self.session)

    def segments(self, messages: Sequence[Message], *, target: int | None) -> list[Segment]:
        """Return the rows; the segment that contains the seq `target` is open."""
        lasts = {message.turn: message.seq for message in messages}
        days = [timezone.localtime(message.created_at).date() for message in messages]
        rows = [
            self.row(
                message,
                is_last=lasts.get(message.turn) == message.seq,
                day=None if day == previous else day,
            )
            for message, day, previous in zip(messages, days, [None, *days], strict=False)
        ]
        return [
            Segment(
                rows=(group := list(grouped)),
                superseded=found,
                is_open=any(row.seq == target for row in group),
            )
            for found, grouped in groupby(rows, key=lambda row: self.turns.superseded_in(row.seq))
        ]

    def row(
        self, message: Message, *, is_last: bool = False, day: date | None = None
    ) -> TranscriptRow:
        """`is_last`: whether it is the last message of its turn on the page."""
        plain = message.plain()
        text, is_cut = truncate(message.text, self.max_chars)
        steps = codec.steps_of(plain)
        return TranscriptRow(
            seq=message.seq,
            role=message.role,
            role_name=str(dict(Message.Role.choices).get(message.role, message.role)),
            text=text,
            html=self._html(message),
            is_cut=is_cut,
            calls=_shown_calls(steps),
            reasoning=_shown_reasoning(steps),
            raw=_raw(message, self.max_raw_chars),
            notes=_row_notes(message, plain),
            model=visible(message.model),
            tokens=message.tokens,
            created_at=message.created_at,
            day=day,
            is_removed=message.seq < self.session.first_seq,
            is_redacted=message.redacted,
            redaction=self.redactions.get(message.seq),
            feedback=self._feedback(message),
            is_rated_bad=message.feedback == Feedback.Value.BAD,
            turn=self.turns.line_of(message.turn) if is_last else None,
            unstored=self._partial(message) if is_last else None,
        )

    def unstored(
        self, turn: Turn, role: Message.Role, text: str, *, is_removed: bool = False, age: str = ""
    ) -> UnstoredText:
        """Return the text of a turn that no message contains."""
        shown, is_cut = truncate(text, self.max_chars)
        return UnstoredText(
            turn_pk=turn.pk,
            role=role,
            role_name=str(role.label),
            status=str(Turn.Status(turn.status).label),
            text=shown,
            html=self._html_of_partial(role, text, f"t{turn.pk}-"),
            is_cut=is_cut,
            is_removed=is_removed,
            created_at=turn.created_at,
            age=age,
        )

    def _partial(self, message: Message) -> UnstoredText | None:
        """Return the text that the ended turn of a message had when a removal ended it."""
        turn = self.turns.by_seq.get(message.turn or 0)
        if turn is None or turn.ended_at is None or not turn.partial:
            return None
        is_removed = message.seq < self.session.first_seq
        return self.unstored(turn, Message.Role.ASSISTANT, turn.partial, is_removed=is_removed)

    def _html(self, message: Message) -> SafeString | None:
        if self.is_source or not is_markdown(message) or len(message.text) > self.max_chars:
            return None
        return self.renderer.html_of(message)

    def _html_of_partial(self, role: str, text: str, prefix: str) -> SafeString | None:
        is_reply = role == Message.Role.ASSISTANT and has_markup(text)
        if self.is_source or not is_reply or len(text) > self.max_chars:
            return None
        person = person_of(self.session.scope, self.session.pk)
        return markdown(text, prefix=prefix, person=person)

    def _feedback(self, message: Message) -> str:
        if message.feedback is None:
            return ""
        labels = dict(Feedback.Value.choices)
        value = labels.get(message.feedback, message.feedback)
        text = _("Feedback: %(value)s") % {"value": value}
        turn = self.turns.by_seq.get(message.turn or 0)
        reason = visible(getattr(turn, "reason", "") or "")
        return f"{text}. {reason}" if reason else text


def _shown_calls(steps: codec.Steps) -> list[Call]:
    """Return each tool call of a message with its arguments, truncated with a mark."""
    calls = []
    for call in steps.calls:
        args, is_cut = truncate(formatted_args(call.args, is_cut=call.cut), MAX_CALL_CHARS)
        calls.append(Call(name=visible(call.name), args=_marked(args, is_cut or call.cut)))
    return calls


def _shown_reasoning(steps: codec.Steps) -> str:
    found = steps.reasoning
    return _marked(visible(found.text), found.cut) if found else ""


def _marked(text: str, is_cut: bool) -> str:
    return f"{text}…" if is_cut else text


def _raw(message: Message, max_chars: int) -> str:
    if not message.body:
        return ""
    if len(message.body) > max_chars:
        return truncate(message.body, max_chars)[0] + "…"
    return visible(json.dumps(message.plain(), ensure_ascii=False, indent=2))


def _row_notes(message: Message, plain: dict[str, object]) -> list[str]:
    """Return the notes beside the text: status, error, damage, truncation."""
    notes = []
    if message.status != Message.Status.COMPLETE:
        notes.append(str(dict(Message.Status.choices).get(message.status, message.status)))
    if message.error:
        notes.append(visible(message.error))
    if message.quarantined or plain.get("quarantined"):
        notes.append(_("unreadable; only its text is shown"))
    if plain.get("cut") or plain.get("cut_calls"):
        notes.append(_("truncated when stored"))
    return notes
