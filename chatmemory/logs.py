"""Log errors without their texts, which may contain users' messages, keys and passwords."""

from __future__ import annotations

import asyncio
import logging
import sysconfig
import threading
import traceback
from collections import deque
from collections.abc import Hashable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

MAX_FRAMES = 30
"""Frames of one error in the log: the last ones, where the error was raised."""
_LIBRARIES = (
    str(Path(__file__).parent),
    *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
    "<frozen",
)
"""Beginnings of the names of files that are not the host's."""
MAX_ERRORS = 10
"""Errors in one log entry: the error, its causes, and the members of groups."""


def log_error(
    logger: logging.Logger,
    message: str,
    *args: object,
    error: BaseException,
    level: int = logging.ERROR,
) -> None:
    """Log a message, then the classes and frames of an error and its causes.

    The class and the place are part of the template, by which tools such as Sentry group errors.
    """
    with_error = f"{message}: %s\n{place_of(error).replace('%', '%%')}"
    logger.log(level, with_error, *args, describe(error), stacklevel=2)


def log_once(logger: logging.Logger, level: int, message: str, *args: Hashable) -> None:
    """Log a message with these arguments once in this process, or again after 10,000 others."""
    with _ONCE:  # several threads can report the same at the same time
        _log(logger, level, message, *args)


@lru_cache(maxsize=10_000)
def _log(logger: logging.Logger, level: int, message: str, *args: Hashable) -> None:
    logger.log(level, message, *args, stacklevel=3)


_ONCE = threading.RLock()
forget_logged = _log.cache_clear
"""Lets `log_once` log everything again."""


def describe(error: BaseException) -> str:
    """Format the classes, HTTP statuses and frames of an error and its causes, without texts."""
    return "\n".join(line for each in _chain(error) for line in _lines(each))


def place_of(error: BaseException) -> str:
    """Return the class of an error, and the last function of the host in its frames, if any."""
    functions = [
        f" in {frame.f_globals.get('__name__')}.{frame.f_code.co_qualname}"
        for each in _chain(error)
        for frame, _ in traceback.walk_tb(each.__traceback__)
        if not frame.f_code.co_filename.startswith(_LIBRARIES)
    ]
    return type(error).__name__ + "".join(functions[-1:])


def text_of(error: BaseException) -> str:
    """Return the text of an error; empty if its class fails to make one."""
    try:
        return str(error)
    except Exception:  # the code of the class can raise any
        return ""


def attribute_of(value: object, name: str) -> Any:
    """Return an attribute of an error or its response; None if it is missing or fails."""
    try:
        return getattr(value, name, None)
    except Exception:  # as a property of the class can
        return None


def log_loop_error(logger: logging.Logger, context: Mapping[str, Any]) -> None:
    """Log the context that an event loop passes to its exception handler."""
    error = context.get("exception")
    if isinstance(error, BaseException):
        log_error(logger, "error in a background task", error=error)
    else:
        logger.error("asyncio reported: %s", context.get("message"))


def watch_loop(loop: asyncio.AbstractEventLoop, logger: logging.Logger) -> None:
    """Make the loop log its errors without their texts."""
    loop.set_exception_handler(lambda _, context: log_loop_error(logger, context))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, then its causes and the members of groups, without repetition."""
    waiting, seen = [error], set[int]()
    while waiting and len(seen) < MAX_ERRORS:
        current = waiting.pop(0)
        if id(current) in seen:  # errors can be the cause of each other
            continue
        seen.add(id(current))
        yield current
        if isinstance(current, BaseExceptionGroup):
            waiting += current.exceptions
        if current.__cause__ is not None:
            waiting.append(current.__cause__)
        elif current.__context__ is not None and not current.__suppress_context__:
            waiting.append(current.__context__)


def _lines(error: BaseException) -> Iterator[str]:
    kind = type(error)
    yield f"{kind.__module__}.{kind.__qualname__}{_status_text(error)}"
    for frame, line in deque(traceback.walk_tb(error.__traceback__), MAX_FRAMES):
        code = frame.f_code
        yield f"  {code.co_filename}:{line} {code.co_qualname}"


def _status_text(error: BaseException) -> str:
    """Return the HTTP status of a provider's error, formatted."""
    status = attribute_of(error, "status_code")
    return f" (status {status:d})" if isinstance(status, int) else ""
