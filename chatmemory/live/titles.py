"""Calls the function of the setting TITLE after a turn, and stores the title that it returns."""

from __future__ import annotations

import asyncio
import logging

from chatmemory.conf import settings
from chatmemory.database.host_code import HostExecutor, call_host, fresh_connections
from chatmemory.errors import MemoryUnavailable
from chatmemory.logs import log_error
from chatmemory.services.titles import aread_untitled, astore_title
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
        path, untitled = settings.TITLE, await aread_untitled(claim=claim)
        if path is None or untitled is None:
            return
        async with fresh_connections(), asyncio.timeout(TITLE_SECONDS):  # Note [Timeouts]
            arguments = untitled.messages, untitled.session
            title = await call_host(path, *arguments, executor=_threads)
        if isinstance(title, str):
            await astore_title(session=untitled.session, title=title)
        else:
            message = "turn %s: TITLE must return a str, not %s"
            logger.error(message, claim.client_id, type(title).__name__)
    except MemoryUnavailable as error:
        logger.warning("turn %s: the session gets no title: %s", claim.client_id, error.code)
    except Exception as error:  # the function is the host's code
        log_error(logger, "turn %s: TITLE failed", claim.client_id, error=error)
