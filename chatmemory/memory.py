"""The interface of the classic memory classes: save what was said, load what the model is given."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from chatmemory import services
from chatmemory.errors import BadInput, NotFound
from chatmemory.services import Actor
from chatmemory.services.addresses import check_session_key
from chatmemory.services.faults import durably
from chatmemory.services.pool import Lane, address_lane, in_pool
from chatmemory.window import read_window

REASON = "cleared by a ChatMemory"

Said = str | Mapping[str, object]
"""A text, or a dict that has it as its only value or under the key named."""


class ChatMemory:
    """The memory of one session. What was said is in the database, nothing of it in this object.

    Once it has loaded, it saves nothing after a clear or purge by somebody else (HistoryCleared);
    load again to go on. The session is made when something is first saved. While a turn of the
    session runs, its runner stores what is said: saving is Busy then.
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
        """`by` and `scope` say for whom, as in the services; server code must name a scope.

        `input_key` and `output_key` name the text in a dict of several values.
        """
        check_session_key(session_key)
        scope = services.scope_for(by, scope)
        self._address: dict[str, Any] = {"session_key": session_key, "by": by, "scope": scope}
        self._input_key = input_key
        self._output_key = output_key
        self._epoch: int | None = None

    def save_context(self, inputs: Said, outputs: Said, *, client_id: str | None = None) -> None:
        """Store what a user said and what was answered, both or neither.

        The same `client_id` again stores nothing. Raises BadInput, Conflict, HistoryCleared,
        Archived, Busy, MemoryUnavailable.
        """
        asked = _text(inputs, self._input_key, "inputs")
        answered = _text(outputs, self._output_key, "outputs")
        services.append_messages(
            **self._address,
            messages=[
                {"role": "user", "content": asked},
                {"role": "assistant", "content": answered},
            ],
            client_id=client_id,
            epoch=self._epoch,
            create=True,
        )

    def load_memory(self) -> list[dict[str, object]]:
        """The window: plain messages in order; none if there is no session.

        Raises MemoryUnavailable.
        """
        self._epoch = None
        try:
            session = services.get_session(**self._address)
        except NotFound:
            return []
        self._epoch = session.epoch
        return durably(lambda: read_window(session).messages, is_repeatable=True)

    def clear(self) -> None:
        """Hide all messages of the session; an operator can restore them.

        Raises Held, MemoryUnavailable.
        """
        with suppress(NotFound):
            services.clear_session(**self._address, reason=REASON)
        self._epoch = None

    def _lane(self, *_: object, **__: object) -> Lane:
        return address_lane(**self._address)

    asave_context = in_pool(save_context, lane=_lane)
    aload_memory = in_pool(load_memory)
    aclear = in_pool(clear, lane=_lane)


def _text(value: object, key: str | None, field: str) -> str:
    if isinstance(value, Mapping):
        if key is None and len(value) != 1:
            raise BadInput(f"{field} has {len(value)} values; name one with a key.", field=field)
        value = value.get(key) if key is not None else next(iter(value.values()))
    if not isinstance(value, str):
        of_key = "" if key is None else f" under {key!a}"
        raise BadInput(f"{field} must have a text{of_key}.", field=field)
    return value
