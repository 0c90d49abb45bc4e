"""Imports the responder when the server starts, so that no first message waits for it."""

from __future__ import annotations

import logging

from chatmemory import responders
from chatmemory.checks.responders import check_responder

logger = logging.getLogger(__name__)

MAX_CHARS = 1_000
"""The longest text of an error in the log."""


def preload() -> None:
    """Import the responder of the current settings; log why it cannot reply.

    Raises nothing: pages, REST and the admin work without a responder.
    """
    messages = check_responder()
    for message in messages:
        logger.error("%s %s", message.msg, message.hint or "")
    if messages:
        return
    try:
        responders.find()
    except Exception as error:  # the host's module and the provider's package may raise any error
        # With its text: it names the missing key or package, and no message of a user exists yet.
        logger.error("All replies will fail: %s", str(error)[:MAX_CHARS])  # noqa: TRY400
