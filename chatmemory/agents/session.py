"""A session of OpenAI's Agents SDK."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from agents import SessionSettings, TResponseInputItem

from chatmemory import codec, services
from chatmemory.access.actors import Actor, scope_for
from chatmemory.access.addresses import check_session_key
from chatmemory.agents.items import item_of, to_plain
from chatmemory.agents.newest import aread_newest, awithdraw_newest
from chatmemory.errors import NotFound

CLEARED = "cleared by a session of the Agents SDK"
POPPED = "popped from a session of the Agents SDK"


class DjangoSession:
    """The items of one session, for `Runner.run(…, session=…)`.

    The first items create the session. Create a new object for each run: if another user or process
    clears or purges the session after its first use, adding and popping raise HistoryCleared until
    the next `get_items`. While a turn of the session runs, they raise Busy.
    """

    def __init__(
        self,
        session_id: str,
        *,
        by: Actor,
        scope: str | None = None,
        session_settings: SessionSettings | dict[str, Any] | None = None,
    ) -> None:
        """`by` and `scope` are as in the services: server code must name a scope.

        `session_settings` are the SDK's; their `limit` is the default of `get_items`.
        """
        check_session_key(session_id)
        self.session_id = session_id
        self.session_settings = SessionSettings().resolve(session_settings)
        self._address: dict[str, Any] = {
            "session_key": session_id,
            "by": by,
            "scope": scope_for(by, scope),
        }
        self._epoch: int | None = None

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """Return the newest `limit` items, or all, the oldest first; none without a session.

        A limit of 0 or less returns none. Raises MemoryUnavailable.
        """
        if limit is None:
            limit = self.session_settings.limit
        items: list[TResponseInputItem] = []
        self._epoch = None
        with suppress(NotFound):
            self._epoch, items = await aread_newest(item_of, **self._address, limit=limit)
        return items

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Store all items or none; an empty list stores nothing.

        What a person wrote is stored exactly or refused. Of the rest, what cannot be stored is
        repaired, as in the reply of a run.
        Raises BadInput, HistoryCleared, Archived, Busy, MemoryUnavailable.
        """
        if not items:
            return
        messages = [to_plain(item, field=f"items[{n}]") for n, item in enumerate(items)]
        for number, message in enumerate(messages):
            if message["role"] == "user":
                codec.encode(message, field=f"items[{number}]")
        appended = await services.aappend_messages(
            **self._address, messages=messages, epoch=self._epoch, create=True, lenient=True
        )
        self._epoch = appended.epoch

    async def pop_item(self) -> TResponseInputItem | None:
        """Withdraw the newest item and return it; None if there is none.

        An operator can restore it. Raises HistoryCleared, Busy, Held, MemoryUnavailable.
        """
        with suppress(NotFound):
            return await awithdraw_newest(
                item_of, **self._address, reason=POPPED, epoch=self._epoch
            )
        return None

    async def clear_session(self) -> None:
        """Hide all items; an operator can restore them. Raises Held, MemoryUnavailable."""
        with suppress(NotFound):
            await services.aclear_session(**self._address, reason=CLEARED)
        self._epoch = None
