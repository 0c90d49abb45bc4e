"""A session as LangChain's `BaseChatMessageHistory`."""

from __future__ import annotations

import hashlib
import logging
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from django.contrib.auth import get_user_model
from django.contrib.auth.base_user import AbstractBaseUser
from langchain_core.chat_history import BaseChatMessageHistory
from langchain_core.messages import BaseMessage

from chatmemory import services, signals
from chatmemory.access.addresses import check_session_key
from chatmemory.database.retries import has_async_version
from chatmemory.errors import ChatMemoryError, MemoryUnavailable, NotFound
from chatmemory.langchain.messages import messages_of_rows, to_langchain, to_plain
from chatmemory.logs import log_once
from chatmemory.services import sessions
from chatmemory.services.turns import run_context

logger = logging.getLogger(__name__)

REASON = "cleared by a LangChain history"


class DjangoChatMessageHistory(BaseChatMessageHistory):
    """The messages of one session, as of this object's first read.

    Messages that a later turn superseded are omitted. Create a new object for each call of a
    chain: the object sees its own writes, but no other writes. After its first read, its writes are
    refused (HistoryCleared) if another writer cleared or purged the session. The first message
    creates the session.

    A failed save is logged with a `ref`, sent as `signals.save_failed`, and raised. The next use of
    the object raises it again, because `RunnableWithMessageHistory` swallows the first error.
    Inside a run of the same session the history is empty and stores nothing, because the runner
    stores the turn.
    """

    def __init__(self, session_id: str, *, owner: AbstractBaseUser | None) -> None:
        """`owner` is the session's user, or None for the scope `server`."""
        _check_address(session_id, owner)
        super().__init__()
        by = services.Actor.server("langchain") if owner is None else services.Actor.user(owner)
        scope = services.SERVER if owner is None else services.user_scope(owner)
        self._address: dict[str, Any] = {"session_key": session_id, "by": by, "scope": scope}
        self._view: list[BaseMessage] | None = None
        self._epoch: int | None = None
        self._failure: Exception | None = None

    @property
    @has_async_version("aget_messages")
    def messages(self) -> list[BaseMessage]:  # type: ignore[override]  # an attribute in the base class
        """The messages, ordered by seq."""
        if self._is_in_run():
            return []
        if self._view is None:
            content = None
            with suppress(NotFound):
                content = sessions.read_content(**self._address)
            self._set_view(content)
        return list(self._view or ())

    # LangChain's default async methods call the sync ones in worker threads, each of which would
    # keep its own database connection.
    async def aget_messages(self) -> list[BaseMessage]:
        if self._is_in_run():
            return []
        if self._view is None:
            content = None
            with suppress(NotFound):
                content = await sessions.aread_content(**self._address)
            self._set_view(content)
        return list(self._view or ())

    @has_async_version("aadd_messages")
    def add_messages(self, messages: Sequence[BaseMessage], *, lenient: bool = False) -> None:
        """Store all messages or none. A repeat with the same ids stores nothing.

        A value that JSON cannot represent is refused, or stored as text with `lenient`.
        Raises BadInput, HistoryCleared, Archived, Busy, Conflict, MemoryUnavailable.
        """
        if self._is_in_run() or not messages:
            return
        with self._recording_failure():
            batch = self._batch(messages, lenient)
            self._extend_view(batch, services.append_messages(**batch))

    async def aadd_messages(
        self, messages: Sequence[BaseMessage], *, lenient: bool = False
    ) -> None:
        if self._is_in_run() or not messages:
            return
        with self._recording_failure():
            batch = self._batch(messages, lenient)
            self._extend_view(batch, await services.aappend_messages(**batch))

    @has_async_version("aclear")
    def clear(self) -> None:
        """Hide all messages of the session; an operator can restore them.

        The next use reads the session again. Raises Held, MemoryUnavailable.
        """
        if self._is_in_run():
            return
        with suppress(NotFound):
            services.clear_session(**self._address, reason=REASON)
        self._view = self._epoch = None

    async def aclear(self) -> None:
        if self._is_in_run():
            return
        with suppress(NotFound):
            await services.aclear_session(**self._address, reason=REASON)
        self._view = self._epoch = None

    def _is_in_run(self) -> bool:
        """Whether a run of this session is active here. Raises the failure of an earlier save."""
        failure, self._failure = self._failure, None
        if isinstance(failure, ChatMemoryError):
            raise failure
        if failure is not None:
            raise MemoryUnavailable("An earlier save failed.") from failure
        is_in_run = run_context.is_in_run(self._address["scope"], self._address["session_key"])
        if is_in_run:
            log_once(logger, logging.WARNING, _OWN_RUN)
        return is_in_run

    def _set_view(self, content: sessions.Content | None) -> None:
        self._epoch = content.epoch if content else None
        self._view = messages_of_rows(content.rows) if content else []

    def _batch(self, messages: Sequence[BaseMessage], lenient: bool) -> dict[str, Any]:
        """Return the arguments of `append_messages`."""
        plains = [to_plain(m, field=f"messages[{index}]") for index, m in enumerate(messages)]
        # A repeat of the same messages has the same client_id. Without ids it cannot be detected.
        ids = [plain.get("id") for plain in plains]
        return {
            **self._address,
            "messages": plains,
            "client_id": hashlib.blake2b(ascii(ids).encode(), digest_size=16).hexdigest()
            if all(ids)
            else None,
            "epoch": self._epoch,
            "create": True,  # with an epoch no session is created
            "lenient": lenient,
        }

    def _extend_view(self, batch: dict[str, Any], appended: services.Appended) -> None:
        if self._view is not None and not appended.is_duplicate:
            self._view += map(to_langchain, batch["messages"])
            self._epoch = appended.epoch

    @contextmanager
    def _recording_failure(self) -> Iterator[None]:
        """Log and raise the error of a save, and keep it for the next use."""
        try:
            yield
        except Exception as error:
            ref = uuid.uuid4().hex[:12]
            code = getattr(error, "code", ChatMemoryError.code)
            logger.error("messages were not stored: %s, ref %s", type(error).__name__, ref)  # noqa: TRY400  # a traceback can contain message content
            signals.save_failed.send_robust(type(self), session_pk=None, ref=ref, error=code)
            error.add_note(f"Logged under the ref {ref}.")
            self._failure = error
            raise


def _check_address(session_id: object, owner: object) -> None:
    if not isinstance(session_id, str) or not session_id:
        given = type(session_id).__name__ if session_id != "" else "an empty string"
        raise TypeError(f"session_id must be a non-empty string, not {given}")
    if owner is not None and (not isinstance(owner, get_user_model()) or owner.pk is None):
        given = type(owner).__name__
        raise TypeError(f"owner must be a saved user, or None for the server, not {given}")
    check_session_key(session_id)


_OWN_RUN = (
    "A history was used in a run of its own session. It is empty and stores nothing, "
    "because the runner passes the window to the model and stores the turn."
)
