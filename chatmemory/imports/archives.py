"""Open a file of a product as streams of JSON: the file itself, or members of a ZIP archive."""

from __future__ import annotations

import io
import re
import struct
import zlib
from collections.abc import Iterator
from typing import IO, BinaryIO
from zipfile import BadZipFile, ZipFile, ZipInfo

from chatmemory.errors import BadInput
from chatmemory.imports.limits import MAX_MEMBERS, MAX_RATIO

ZIP = b"PK\3\4"
_EMPTY_ZIP = b"PK\5\6"

# ChatGPT splits large exports into conversations-000.json and so on (seen since 2026).
_MEMBER = re.compile(r"(?:.*/)?conversations(?:-\d+)?\.json", re.IGNORECASE)

_END = struct.Struct("<4s4H2LH")  # the end of the central directory; APPNOTE.TXT, 4.3.16
_MAX_COMMENT = 2**16

_ENCRYPTED = 0x1

_DAMAGES = (BadZipFile, zlib.error, EOFError, NotImplementedError, OSError, ValueError)
_DAMAGED = "The ZIP archive is damaged or truncated."


def is_archive(head: bytes) -> bool:
    """Whether a file that begins with these bytes is a ZIP archive."""
    return head.startswith((ZIP, _EMPTY_ZIP))


def open_members(stream: BinaryIO) -> Iterator[tuple[str, BinaryIO]]:
    """Yield the name and the unpacked stream of each file of conversations, in order of names.

    Nothing is unpacked to a disk. Raises BadInput.
    """
    if not stream.seekable():
        raise BadInput("A ZIP archive can't be read from standard input.", code="bad_shape")
    _check_member_count(stream)
    try:
        with ZipFile(stream) as archive:
            members = [info for info in archive.infolist() if _is_wanted(info)]
            if not members:
                message = "The ZIP archive has no conversations.json."
                raise BadInput(message, code="bad_shape")
            for info in sorted(members, key=lambda info: info.filename):
                if info.flag_bits & _ENCRYPTED:
                    message = f"{_shown(info)} is encrypted; unpack it with its password first."
                    raise BadInput(message, code="bad_shape")
                with archive.open(info) as member:
                    yield info.filename, io.BufferedReader(_Member(member, info), 2**16)
    except _DAMAGES as error:
        raise BadInput(_DAMAGED, code="bad_shape") from error


def _is_wanted(info: ZipInfo) -> bool:
    return _MEMBER.fullmatch(info.filename) is not None and not info.filename.startswith("__MACOSX")


def _shown(info: ZipInfo) -> str:
    return ascii(info.filename[-80:])


def _check_member_count(stream: BinaryIO) -> None:
    """Refuse an archive with too many files before Python reads the list of them."""
    size = stream.seek(0, io.SEEK_END)
    stream.seek(max(0, size - _END.size - _MAX_COMMENT))
    tail = stream.read()
    stream.seek(0)
    # Only where it fits: its own fields may look like another one.
    at = tail.rfind(_EMPTY_ZIP, 0, max(0, len(tail) - _END.size + len(_EMPTY_ZIP)))
    if at >= 0:
        _, _, _, _, members, directory_size, _, _ = _END.unpack_from(tail, at)
        # The size too, since the number may be wrong; the name and times of a file have 46 bytes.
        if members > MAX_MEMBERS or directory_size > MAX_MEMBERS * 200:
            message = f"The ZIP archive has more than {MAX_MEMBERS} files."
            raise BadInput(message, code="too_many", limit=MAX_MEMBERS)


class _Member(io.RawIOBase):
    """A member that raises BadInput where it is damaged, or as soon as it is too large."""

    def __init__(self, member: IO[bytes], info: ZipInfo) -> None:
        self._member = member
        self._info = info
        self._left = max(info.compress_size, 2**14) * MAX_RATIO

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # a writable buffer
        try:
            data = self._member.read(len(buffer))
        except _DAMAGES as error:
            raise BadInput(_DAMAGED, code="bad_shape") from error
        self._left -= len(data)
        if self._left < 0:
            message = f"{_shown(self._info)} unpacks to more than {MAX_RATIO} times its size."
            raise BadInput(message, code="too_large", limit=MAX_RATIO)
        buffer[: len(data)] = data
        return len(data)
