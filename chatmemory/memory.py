"""The interface of LangChain's classic memory classes: save a turn, load the window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Unpack

from chatmemory import services
from chatmemory.access import actors
from chatmemory.access.addresses import address_lane, check_session_key
from chatmemory.database.pool import Lane, in_pool
from chatmemory.database.retries import retried
from chatmemory.errors import BadInput, NotFound
from chatmemory.models import Session
from chatmemory.services import Actor
from chatmemory.services.removal.trim_limits import TrimLimit
from chatmemory.services.session_fields import check_fields
from chatmemory.window import read_window

REASON = "cleared by a ChatMemory"
TRIMMED = "trimmed by a ChatMemory"

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
        ttl_seconds: int | None = None,
    ) -> None:
        """`by` and `scope` are as in the services: server code must name a scope.

        `input_key` and `output_key` are the keys of the text in dicts with several values. A
        session that this memory creates expires `ttl_seconds` after its last message.
        """
        check_session_key(session_key)
        check_fields({"ttl_seconds": ttl_seconds})
        scope = actors.scope_for(by, scope)
        self._address: dict[str, Any] = {"session_key": session_key, "by": by, "scope": scope}
        self._input_key = input_key
        self._output_key = output_key
        self._ttl_seconds = ttl_seconds
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
        messages = [
            {"role": "user", "content": question},
            {"role": "assistant", "content": reply},
        ]
        self.add_messages(messages, client_id=client_id)

    def add_messages(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        client_id: str | None = None,
        lenient: bool = False,
    ) -> None:
        """Store plain messages, all or none. None at all is no error, and creates no session.

        `client_id` and `lenient` are as in `append_messages`. Raises as `save_context`.
        """
        if not messages:
            return
        append = partial(
            services.append_messages,
            **self._address,
            messages=messages,
            client_id=client_id,
            epoch=self._epoch,
            lenient=lenient,
        )
        try:
            append(create=self._ttl_seconds is None)
        except NotFound:  # not before, since messages that are refused must open no session
            services.open_session(**self._address, ttl_seconds=self._ttl_seconds)
            append()

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

    def all(self) -> list[dict[str, object]]:
        """Return all messages, oldest first; empty if there is no session.

        One that cannot be decoded is returned with its text, marked `quarantined`. Superseded ones
        are omitted. Raises MemoryUnavailable.
        """
        self._epoch = None
        try:
            page = services.read_history(**self._address, superseded=False)
        except NotFound:
            return []
        self._epoch = page.head.epoch
        return [row.plain() for row in page.rows]

    def trim(self, **limit: Unpack[TrimLimit]) -> int:
        """Hide the oldest messages, as `trim_session`; return their number.

        An operator can restore them. Without a session it is 0. Raises BadInput, Held,
        MemoryUnavailable.
        """
        entry = None
        with suppress(NotFound):
            entry = services.trim_session(**self._address, reason=TRIMMED, **limit)
        return 0 if entry is None else int(entry.counts["messages"])

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
    aadd_messages = in_pool(add_messages, lane=_lane_of_memory)
    aload_memory = in_pool(load_memory)
    aall = in_pool(all)  # noqa: A003  # the method
    atrim = in_pool(trim, lane=_lane_of_memory)
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
