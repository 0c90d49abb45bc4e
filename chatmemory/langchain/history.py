"""The history class: a session as LangChain's chains want it."""

from __future__ import annotations

import hashlib
import logging
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

from django.contrib.auth.base_user import AbstractBaseUser
from langchain_core.chat_history import BaseChatMessageHistory
from langchain_core.messages import BaseMessage

from chatmemory import services, signals
from chatmemory.errors import ChatMemoryError, MemoryUnavailable, NotFound
from chatmemory.langchain.messages import to_langchain, to_plain
from chatmemory.models import Page
from chatmemory.services.addresses import check_session_key
from chatmemory.services.faults import has_twin

logger = logging.getLogger(__name__)

REASON = "cleared by a LangChain history"


class DjangoChatMessageHistory(BaseChatMessageHistory):
    """The messages of one session, as they were when this object first read them.

    Those that a later turn superseded, by an edit or a new reply, are left out.
    Make a new object for each call of a chain: what this one stores joins its view, what others
    store doesn't. Once it has read, it stores nothing after a clear or purge by somebody else
    (HistoryCleared). The session is made at the first message.

    A failed save is logged with a `ref`, sent as `signals.save_failed`, raised, and raised again
    at the next use of the object, since `RunnableWithMessageHistory` swallows the first.
    While a turn of the session runs, its runner stores what is said: called by its responder,
    this reads empty and stores nothing.
    """

    def __init__(self, session_id: str, *, owner: AbstractBaseUser | None) -> None:
        """`owner` is the user whose session it is, or None for the scope `server`."""
        _check_address(session_id, owner)
        super().__init__()
        by = services.Actor.server("langchain") if owner is None else services.Actor.user(owner)
        scope = services.SERVER if owner is None else services.user_scope(owner)
        self._address: dict[str, Any] = {"session_key": session_id, "by": by, "scope": scope}
        self._view: list[BaseMessage] | None = None
        self._epoch: int | None = None
        self._failure: Exception | None = None

    @property
    @has_twin("aget_messages")
    def messages(self) -> list[BaseMessage]:  # type: ignore[override]  # there, an attribute
        """What this object sees of the session, in order."""
        if self._is_left_to_the_runner():
            return []
        if self._view is None:
            page = None
            with suppress(NotFound):
                page = services.read_history(**self._address, superseded=False)
            self._see(page)
        return list(self._view or ())

    async def aget_messages(self) -> list[BaseMessage]:
        if self._is_left_to_the_runner():
            return []
        if self._view is None:
            page = None
            with suppress(NotFound):
                page = await services.aread_history(**self._address, superseded=False)
            self._see(page)
        return list(self._view or ())

    @has_twin("aadd_messages")
    def add_messages(self, messages: Sequence[BaseMessage], *, lenient: bool = False) -> None:
        """Store messages, all or none; with the same ids again, only once.

        What JSON can't say is refused, or with `lenient` written as text. None stores nothing.
        Raises BadInput, HistoryCleared, Archived, Busy, Conflict, MemoryUnavailable.
        """
        if self._is_left_to_the_runner() or not messages:
            return
        with self._saving():
            batch = self._batch(messages, lenient)
            self._saved(batch, services.append_messages(**batch))

    async def aadd_messages(
        self, messages: Sequence[BaseMessage], *, lenient: bool = False
    ) -> None:
        if self._is_left_to_the_runner() or not messages:
            return
        with self._saving():
            batch = self._batch(messages, lenient)
            self._saved(batch, await services.aappend_messages(**batch))

    @has_twin("aclear")
    def clear(self) -> None:
        """Hide all messages of the session; an operator can restore them.

        The next use looks at the session anew. Raises Held, MemoryUnavailable.
        """
        if self._is_left_to_the_runner():
            return
        with suppress(NotFound):
            services.clear_session(**self._address, reason=REASON)
        self._view = self._epoch = None

    async def aclear(self) -> None:
        if self._is_left_to_the_runner():
            return
        with suppress(NotFound):
            await services.aclear_session(**self._address, reason=REASON)
        self._view = self._epoch = None

    def _is_left_to_the_runner(self) -> bool:
        """Whether there is nothing to do here; an earlier failure is raised first."""
        failure, self._failure = self._failure, None
        if isinstance(failure, ChatMemoryError):
            raise failure
        if failure is not None:
            raise MemoryUnavailable("An earlier save failed.") from failure
        is_in_run = services.in_run(self._address["scope"], self._address["session_key"])
        if is_in_run:
            _log_run_once()
        return is_in_run

    def _see(self, page: Page | None) -> None:
        self._epoch = page.head.epoch if page else None
        self._view = [to_langchain(row.plain()) for row in page.rows] if page else []

    def _batch(self, messages: Sequence[BaseMessage], lenient: bool) -> dict[str, Any]:
        """The arguments of `append_messages`; with an epoch it makes no session."""
        plains = [to_plain(m, field=f"messages[{place}]") for place, m in enumerate(messages)]
        ids = [plain.get("id") for plain in plains]
        return {
            **self._address,
            "messages": plains,
            "client_id": hashlib.sha256(ascii(ids).encode()).hexdigest() if all(ids) else None,
            "epoch": self._epoch,
            "create": True,
            "lenient": lenient,
        }

    def _saved(self, batch: dict[str, Any], appended: services.Appended) -> None:
        if self._view is not None and not appended.is_duplicate:
            self._view += map(to_langchain, batch["messages"])
            self._epoch = appended.epoch

    @contextmanager
    def _saving(self) -> Iterator[None]:
        """Tell of a failure here, now and at the next use."""
        try:
            yield
        except Exception as error:
            ref = uuid.uuid4().hex[:12]
            code = getattr(error, "code", ChatMemoryError.code)
            logger.error("messages were not stored: %s, ref %s", type(error).__name__, ref)  # noqa: TRY400  # a traceback may hold what was said
            signals.save_failed.send_robust(type(self), session_pk=None, ref=ref, error=code)
            error.add_note(f"Logged under the ref {ref}.")
            self._failure = error
            raise


def _check_address(session_id: object, owner: object) -> None:
    if not isinstance(session_id, str) or not session_id:
        said = type(session_id).__name__ if session_id != "" else "an empty text"
        raise TypeError(f"session_id must be the name of a session, not {said}")
    if owner is not None and (not isinstance(owner, AbstractBaseUser) or owner.pk is None):
        said = type(owner).__name__
        raise TypeError(f"owner must be a saved user, or None for the server, not {said}")
    check_session_key(session_id)


@cache
def _log_run_once() -> None:
    logger.warning(
        "A history was used in a run of its own session; it reads empty and stores nothing, "
        "for the runner gives the model its window and stores the turn."
    )
