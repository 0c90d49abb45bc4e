"""The rows of a conversation, as a run of each turn stores them.

The services would take a minute for all conversations, and give each row the present time.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random

from chatmemory import codec
from chatmemory.errors import ModelTimeout
from chatmemory.models import Feedback, Message, Session, Turn
from project.demo_data.texts import Exchange, ToolCall

Plain = Mapping[str, object]

TOOL_SECONDS = 0.6
CHARS_PER_SECOND = 90.0
"""How fast the models write."""
OWNER = "another process"
"""The lease owner of what runs."""
LEASE = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """A user or a visitor."""

    scope: str
    owner_id: int | None
    language: str


class Conversation:
    """A session with its rows, which are not stored yet. `clock` is the present time in it."""

    def __init__(
        self, person: Person, *, title: str, started_at: datetime, model: str, rng: Random
    ) -> None:
        self.person, self.model, self.clock, self._rng = person, model, started_at, rng
        self.session = Session(
            scope=person.scope,
            key=self._new_id(),
            owner_id=person.owner_id,
            title=title,
            metadata={"language": person.language},
            created_at=started_at,
            last_active_day=started_at.date(),
            last_seq=0,
            revision=0,
            rows_revision=0,
            fence=0,
            tokens=0,
            waiting=0,
        )
        self.messages: list[Message] = []
        self.turns: list[Turn] = []
        self.feedback: list[Feedback] = []

    def _new_id(self) -> str:
        return str(uuid.UUID(int=self._rng.getrandbits(128), version=4))

    def wait(self, low: float, high: float) -> None:
        """Let a random time pass, in seconds."""
        self.clock += timedelta(seconds=self._rng.uniform(low, high))

    def ask(self, text: str) -> Turn:
        """Begin a turn with a person's message."""
        self.session.fence += 1
        self.session.revision += 1
        turn = Turn(
            session=self.session,
            client_id=self._new_id(),
            user_seq=self.session.last_seq + 1,
            epoch=self.session.epoch,
            fence=self.session.fence,
            created_at=self.clock,
            model=self.model,
        )
        self.turns.append(turn)
        row = codec.encode({"role": "user", "content": text}, client_id=turn.client_id)
        self._add_row(row, turn)
        self.wait(0.02, 0.1)
        turn.started_at = self.clock
        return turn

    def answer(
        self, exchange: Exchange, *, status: str = "complete", error: str = "", part: float = 1.0
    ) -> None:
        """Run a turn to its end; `part` of the reply is written."""
        turn = self.ask(exchange.asked)
        if exchange.tool is not None and not error:
            self._call_tool(exchange.tool, turn)
        text = exchange.reply[: round(len(exchange.reply) * part)].rstrip()
        self._write(text, turn)
        if error == ModelTimeout.code:
            self.wait(12, 20)
        last = codec.encode(
            {"role": "assistant", "content": text},
            status=status,
            error=error,
            model=self.model,
            client_id=self._new_id(),
            step=1,
        )
        self._add_row(last, turn)
        turn.status, turn.error, turn.ended_at = status, error, self.clock
        turn.usage = self._usage(len(text)) if text else ""
        self.session.revision += 1

    def _call_tool(self, tool: ToolCall, turn: Turn) -> None:
        self.wait(0.4, 1.5)
        call = {"id": f"call-{turn.user_seq}", "name": tool.name, "args": tool.args}
        asked = {"role": "assistant", "content": "", "tool_calls": [call]}
        self._add_plain(asked, turn)
        self.wait(TOOL_SECONDS / 4, TOOL_SECONDS * 2)
        content = json.dumps(tool.result, ensure_ascii=False)
        result = {"role": "tool", "name": tool.name, "tool_call_id": call["id"]}
        self._add_plain({**result, "content": content}, turn)

    def _write(self, text: str, turn: Turn) -> None:
        """Let the time pass in which the model writes a text, or fails."""
        if not text:
            self.wait(0.3, 8)
            return
        self.wait(0.3, 2.4)
        assert turn.started_at is not None  # noqa: S101  # `ask` sets it
        turn.first_text_ms = round((self.clock - turn.started_at).total_seconds() * 1000)
        self.clock += timedelta(seconds=len(text) / CHARS_PER_SECOND)

    def _usage(self, chars: int) -> str:
        # The model is also given the instructions of the bot.
        given = 350 + sum(row.tokens for row in self.messages[-20:])
        written = 1 + chars // 4
        usage = {"input_tokens": given, "output_tokens": written, "total_tokens": given + written}
        return codec.dump_json(usage)

    def _add_plain(self, message: Plain, turn: Turn) -> None:
        model = "" if message["role"] == "tool" else self.model
        self._add_row(codec.encode(message, model=model, client_id=self._new_id()), turn)

    def _add_row(self, row: codec.Row, turn: Turn) -> None:
        self.session.last_seq += 1
        self.session.tokens += row.tokens
        self.messages.append(
            Message(
                session=self.session,
                seq=self.session.last_seq,
                role=row.role,
                text=row.text,
                body=row.body,
                client_id=row.client_id,
                batch=1,
                turn=turn.user_seq,
                step=row.step,
                status=row.status,
                error=row.error,
                model=row.model,
                tokens=row.tokens,
                created_at=self.clock,
            )
        )
        self.session.last_message_at = self.clock
        self.session.last_active_day = self.clock.date()

    def rate(self, value: int, reason: str) -> None:
        """Rate the last reply."""
        turn, reply = self.turns[-1], self.messages[-1]
        given_at = self.clock + timedelta(seconds=self._rng.uniform(4, 40))
        self.session.revision += 1
        self.session.rows_revision = reply.revision = self.session.revision
        reply.feedback = value
        self.feedback.append(
            Feedback(
                session=self.session,
                turn=turn.client_id,
                user_seq=turn.user_seq or 0,
                value=value,
                reason=reason,
                created_at=given_at,
                changed_at=given_at,
            )
        )

    def run(self, text: str, *, partial: str) -> None:
        """Begin a turn that still runs, in another process."""
        turn = self.ask(text)
        self.session.running = turn.client_id
        turn.status, turn.scope, turn.model = Turn.Status.RUNNING, self.session.scope, ""
        turn.lease_owner, turn.lease_until = OWNER, self.clock + LEASE
        turn.partial, turn.step = partial, 1

    def queue(self, text: str) -> None:
        """Add a turn that waits."""
        self.session.waiting += 1
        self.session.revision += 1
        self.turns.append(
            Turn(
                session=self.session,
                scope=self.session.scope,
                client_id=self._new_id(),
                status=Turn.Status.WAITING,
                asked=codec.dump_json({"role": "user", "content": text}),
                epoch=self.session.epoch,
                created_at=self.clock,
            )
        )


def store(conversations: Sequence[Conversation]) -> None:
    """Insert all rows, the sessions in this order."""
    Session.objects.bulk_create(one.session for one in conversations)
    # Again: `bulk_create` has set the primary keys of the sessions.
    for one in conversations:
        rows: list[Turn | Message | Feedback] = [*one.turns, *one.messages, *one.feedback]
        for row in rows:
            row.session = one.session
    Turn.objects.bulk_create(turn for one in conversations for turn in one.turns)
    Message.stored.bulk_create(row for one in conversations for row in one.messages)
    Feedback.objects.bulk_create(given for one in conversations for given in one.feedback)
