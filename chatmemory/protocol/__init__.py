"""Parse and serialize the frames of the websocket protocol `chatmemory.v1`. Pure.

Each frame and each request body of REST is declared once, by a class. Parser, JSON Schema and
docs/reference/frames.md are derived from it.
"""

from __future__ import annotations

from chatmemory.protocol.client_frames import (
    BUSY_POLICIES,
    DEFAULT_FETCH,
    MAX_FETCH,
    MAX_FRAME_IN,
    MAX_TITLE_CHARS,
    VERSION,
    Feedback,
    Fetch,
    Frame,
    FrameId,
    Hello,
    Pong,
    Rename,
    Request,
    Send,
    Stop,
    id_of,
    parse,
)
from chatmemory.protocol.cursors import Cursor
from chatmemory.protocol.server_frames import (
    MAX_FRAME_OUT,
    dump,
    dump_error,
    dump_message,
    shortened,
)

__all__ = [
    "BUSY_POLICIES",
    "DEFAULT_FETCH",
    "MAX_FETCH",
    "MAX_FRAME_IN",
    "MAX_FRAME_OUT",
    "MAX_TITLE_CHARS",
    "VERSION",
    "Cursor",
    "Feedback",
    "Fetch",
    "Frame",
    "FrameId",
    "Hello",
    "Pong",
    "Rename",
    "Request",
    "Send",
    "Stop",
    "dump",
    "dump_error",
    "dump_message",
    "id_of",
    "parse",
    "shortened",
]
