"""Frames of rows, encoded once for all sockets of a process that show the same session."""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Hashable

from chatmemory import protocol
from chatmemory.live.texts import SessionRef
from chatmemory.models import StoredMessage

MAX_BYTES = 4 * 1024 * 1024
"""Memory of the frames that are kept; the ones that were used last stay."""


class RowFrames:
    """A bounded cache of `message` frames; any thread may call it."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self.size = 0
        """Memory of the frames, in bytes."""
        self._lock = threading.Lock()
        self._frames: OrderedDict[Hashable, str] = OrderedDict()

    def frame_of(self, ref: SessionRef, row: StoredMessage) -> str:
        """Return the frame of a row, from the cache if it is there."""
        # Every change of a row changes its revision. A restored database may assign the numbers of
        # a row again, so the key also has what identifies it (`row_digest_of`).
        key = (ref, row.seq, row.revision, row.created_at, row.role, row.client_id)
        with self._lock:
            if (frame := self._frames.get(key)) is not None:
                self._frames.move_to_end(key)
                return frame
        frame = protocol.dump_message(row.public())
        with self._lock:
            if key not in self._frames:
                self._frames[key] = frame
                self.size += sys.getsizeof(frame)
            while self.size > self.max_bytes:
                _, oldest = self._frames.popitem(last=False)
                self.size -= sys.getsizeof(oldest)
        return frame


row_frames = RowFrames()
"""The frames of this process."""
