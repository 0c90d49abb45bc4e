"""The interface of LangChain's classic memory classes: save a turn, load the window."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from chatmemory import services
from chatmemory.access import actors
from chatmemory.access.addresses import address_lane, check_session_key
from chatmemory.database.pool import Lane, in_pool
from chatmemory.database.retries import retried
from chatmemory.errors import BadInput, NotFound
from chatmemory.models import Session
from chatmemory.services import Actor
from chatmemory.window import read_window

REASON = "cleared by a ChatMemory"

TextOrDict = str | Mapping[str, object]
"""A text, or a dict that contains it as its only value or under the configured key."""


class ChatMemory:
    """The memory of one session. It keeps no messages outside the database.

    The first save creates the session. If another user or process clears or purges the session
    after a load, saving raises HistoryCleared until the next load. While a turn of the session
    runs, saving raises Busy, because only the runner stores messages.
    """

    def __init__(
        self,
        session_key: str,
        *,
        by: Actor,
        scope: str | None = None,
        input_key: str | None = None,
        output_key: str | None = None,
    ) -> None:
        """`by` and `scope` are as in the services: server code must name a scope.

        `input_key` and `output_key` are the keys of the text in dicts with several values.
        """
        check_session_key(session_key)
        scope = actors.scope_for(by, scope)
        self._address: dict[str, Any] = {"session_key": session_key, "by": by, "scope": scope}
        self._input_key = input_key
        self._output_key = output_key
        self._epoch: int | None = None

    def save_context(
        self, inputs: TextOrDict, outputs: TextOrDict, *, client_id: str | None = None
    ) -> None:
        """Store a user message and its reply, both or neither.

        A repeated `client_id` stores nothing. Raises BadInput, Conflict, HistoryCleared, Archived,
        Busy, MemoryUnavailable.
        """
        question = _input_text(inputs, self._input_key, "inputs")
        reply = _input_text(outputs, self._output_key, "outputs")
        services.append_messages(
            **self._address,
            messages=[
                {"role": "user", "content": question},
                {"role": "assistant", "content": reply},
            ],
            client_id=client_id,
            epoch=self._epoch,
            create=True,
        )

    def load_memory(self) -> list[dict[str, object]]:
        """Return the window as plain messages, oldest first; empty if there is no session.

        Raises MemoryUnavailable.
        """
        self._epoch = None
        try:
            session = services.get_session(**self._address)
        except NotFound:
            return []
        self._epoch = session.epoch
        return _read_window(session)

    def clear(self) -> None:
        """Hide all messages of the session; an operator can restore them.

        Raises Held, MemoryUnavailable.
        """
        with suppress(NotFound):
            services.clear_session(**self._address, reason=REASON)
        self._epoch = None

    def _lane_of_memory(self, *_: object, **__: object) -> Lane:
        return address_lane(**self._address)

    asave_context = in_pool(save_context, lane=_lane_of_memory)
    aload_memory = in_pool(load_memory)
    aclear = in_pool(clear, lane=_lane_of_memory)


@retried(is_repeatable=True)
def _read_window(session: Session) -> list[dict[str, object]]:
    return read_window(session).messages


def _input_text(value: object, key: str | None, field: str) -> str:
    if isinstance(value, Mapping):
        if key is None and len(value) != 1:
            message = f"{field} has {len(value)} values. Set {field[:-1]}_key to the text's key."
            raise BadInput(message, field=field)
        value = value.get(key) if key is not None else next(iter(value.values()))
    if not isinstance(value, str):
        where = "" if key is None else f" under the key {key!a}"
        raise BadInput(f"{field} must contain a string{where}.", field=field)
    return value
