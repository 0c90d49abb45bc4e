"""Errors in the log, without their texts: these may hold messages of users, keys and passwords."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

MAX_FRAMES = 30
MAX_ERRORS = 10


def log_error(
    logger: logging.Logger,
    message: str,
    *args: object,
    error: BaseException,
    level: int = logging.ERROR,
) -> None:
    """Log a message, then the classes and frames of an error and of those that caused it."""
    with_error = f"{message}: %s"
    logger.log(level, with_error, *args, describe(error), stacklevel=2)


def describe(error: BaseException) -> str:
    """The classes, HTTP statuses and frames of an error and of its causes; never their texts."""
    return "\n".join(line for one in _chain(error) for line in _lines(one))


def log_loop_error(logger: logging.Logger, context: Mapping[str, Any]) -> None:
    """Log what an event loop gives to its exception handler."""
    error = context.get("exception")
    if isinstance(error, BaseException):
        log_error(logger, "an error in a background task", error=error)
    else:
        logger.error("asyncio reports %s", context.get("message"))


def watch_loop(loop: asyncio.AbstractEventLoop, logger: logging.Logger) -> None:
    """Have the loop log its errors without their texts."""
    loop.set_exception_handler(lambda _, context: log_loop_error(logger, context))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, then those that caused it or that it groups, each once."""
    waiting, seen = [error], set[int]()
    while waiting and len(seen) < MAX_ERRORS:
        one = waiting.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        if isinstance(one, BaseExceptionGroup):
            waiting += one.exceptions
        if one.__cause__ is not None:
            waiting.append(one.__cause__)
        elif one.__context__ is not None and not one.__suppress_context__:
            waiting.append(one.__context__)


def _lines(error: BaseException) -> Iterator[str]:
    kind = type(error)
    yield f"{kind.__module__}.{kind.__qualname__}{_status(error)}"
    for frame, line in deque(traceback.walk_tb(error.__traceback__), MAX_FRAMES):
        code = frame.f_code
        yield f"  {code.co_filename}:{line} {code.co_qualname}"


def _status(error: BaseException) -> str:
    """The HTTP status that a provider's error carries."""
    status = getattr(error, "status_code", None)
    return f" (status {status:d})" if isinstance(status, int) else ""
