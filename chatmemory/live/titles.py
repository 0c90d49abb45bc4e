"""Calls the function of the setting TITLE after a turn, and stores the title that it returns."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from typing import Any

from django.utils.module_loading import import_string

from chatmemory.conf import settings
from chatmemory.database.host_code import HostExecutor, fresh_connections
from chatmemory.errors import MemoryUnavailable
from chatmemory.logs import log_error
from chatmemory.services.titles import Untitled, aread_untitled, astore_title
from chatmemory.services.turns.claims import Claim

logger = logging.getLogger(__name__)

TITLE_SECONDS = 30.0
"""Time limit of the function. A sync one continues in its thread, but its title is not stored."""
TITLE_THREADS = 2
"""Threads for sync functions. Responders have others, so that no reply waits for a title."""

_threads = HostExecutor(TITLE_THREADS, name="chatmemory-titles")


async def give_title(claim: Claim) -> None:
    """Give the session of a turn that has ended a title, if it has none.

    Logs why it gets none. Runs in the runner's loop, since a chat model can be used in only one.
    """
    try:
        untitled = await aread_untitled(claim=claim)
        if untitled is None:
            return
        async with fresh_connections(), asyncio.timeout(TITLE_SECONDS):  # Note [Timeouts]
            title = await _title_of(untitled)
        if isinstance(title, str):
            await astore_title(session=untitled.session, title=title)
        else:
            message = "turn %s: TITLE must return a str, not %s"
            logger.error(message, claim.client_id, type(title).__name__)
    except MemoryUnavailable as error:
        logger.warning("turn %s: the session gets no title: %s", claim.client_id, error.code)
    except Exception as error:  # the function is the host's code
        log_error(logger, "turn %s: TITLE failed", claim.client_id, error=error)


async def _title_of(untitled: Untitled) -> object:
    # Imported in a thread: LangChain and a provider's package take seconds.
    function = await _in_thread(import_string, settings.TITLE)
    arguments = untitled.messages, untitled.session
    if inspect.iscoroutinefunction(function):
        return await function(*arguments)
    title = await _in_thread(function, *arguments)
    return await title if inspect.isawaitable(title) else title


async def _in_thread(function: Callable[..., Any], *arguments: object) -> Any:
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_threads, function, *arguments)
