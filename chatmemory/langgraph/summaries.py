"""Summaries of LangChain's SummarizationMiddleware, which a session keeps from turn to turn.

Importing this module imports LangChain.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from typing import Any

from langchain_core.messages import BaseMessage

from chatmemory.codec import text_of
from chatmemory.derived import READS_OTHERS, EndingTurn
from chatmemory.errors import BadInput
from chatmemory.langchain import to_plain
from chatmemory.langgraph.state import KeptState, State, value_text
from chatmemory.models import Message
from chatmemory.responders import Request

logger = logging.getLogger(__name__)

# Note [Summaries]
#
# The middleware replaces the oldest messages of the graph's state by a summary when they exceed its
# limit. The next turn begins with the window again, so it would summarize again, in each turn. So
# the end of a turn keeps the summary, with the last message that it replaces, and the next turns
# get it in place of these messages. Then the model's input only grows until the next summary, and
# a provider can cache it.

SUMMARY = "langchain.summarization"
"""The name of the state."""

_Numbered = tuple[int | None, dict[str, object]]
"""A plain message of the input with its seq, if it is one row."""


class Summaries:
    """The input of a run, with the summary of earlier turns in place of what it replaces."""

    def __init__(self, graph: Any, request: Request, state: State | None) -> None:
        self._nodes = sorted(graph.nodes)
        self._known = ""
        """The id of the summary in the input."""
        numbered: list[_Numbered] = [
            (getattr(plain, "seq", None), {**plain, "id": plain.get("id") or str(uuid.uuid4())})
            for plain in request.messages
        ]
        # Another graph of the session may have no such middleware, or other limits.
        if state is not None and state.value["nodes"] == self._nodes:
            self._known = state.value["message"]["id"]
            numbered = _shortened(numbered, state)
        self._given = [(message["id"], seq) for seq, message in numbered]
        self._added = {
            message["id"]
            for seq, message in numbered
            if seq is None and message["role"] != Message.Role.SYSTEM
        }
        """The messages that may be more than one row."""
        self.messages = [message for _, message in numbered]

    def store(self, ending: EndingTurn, low: int, messages: Sequence[BaseMessage]) -> None:
        """Store the summary in the last messages of a run, if the run has made it."""
        found = (number for number, message in enumerate(messages) if _is_summary(message))
        number = next(found, None)
        if number is None or messages[number].id == self._known:
            return
        seq = self._last_replaced(ending, messages[number + 1 :])
        if seq is None:
            return
        value = {"nodes": self._nodes, "message": to_plain(messages[number])}
        try:
            text = value_text(value)
        except BadInput as error:
            logger.warning("turn %s: its summary cannot be kept: %s", ending.turn, error)
            return
        KeptState(name=SUMMARY, value=text, low=low, high=seq).store(ending, low)

    def _last_replaced(self, ending: EndingTurn, kept: Sequence[BaseMessage]) -> int | None:
        """Return the seq of the last message that the summary replaces; None if it is unknown."""
        ids = {message.id for message in kept}
        kept_given = (number for number, (id_, _) in enumerate(self._given) if id_ in ids)
        first = next(kept_given, None)
        replaced = self._given[:first]
        if READS_OTHERS in ending.left and any(id_ in self._added for id_, _ in replaced):
            return None  # the summary may have words of other sessions
        if first is not None:
            return max((seq for _, seq in replaced if seq is not None), default=None)
        # The summary also replaces the question, and maybe calls and results of this turn.
        of_turn = Message.stored.filter(session=ending.seen.session_pk, turn=ending.user_seq)
        rows = list(of_turn.in_order().values_list("seq", "role", "text"))
        is_same = [(role, text) for _, role, text in rows[-len(kept) :]] == [
            (to_plain(message)["role"], text_of(message.content)) for message in kept
        ]
        return rows[-len(kept) - 1][0] if is_same and len(rows) > len(kept) else None


def _is_summary(message: BaseMessage) -> bool:
    return message.additional_kwargs.get("lc_source") == "summarization"


def _shortened(numbered: Sequence[_Numbered], state: State) -> list[_Numbered]:
    """Replace the messages up to that of the state by its summary, except system messages."""
    is_system = [message["role"] == "system" for _, message in numbered]
    replaced = [number for number, (seq, _) in enumerate(numbered) if seq and seq <= state.seq]
    end = replaced[-1] + 1 if replaced else is_system.index(False)
    system = [each for each, is_kept in zip(numbered[:end], is_system, strict=False) if is_kept]
    return [*system, (state.seq, state.value["message"]), *numbered[end:]]
