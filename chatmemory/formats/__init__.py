"""Export and import sessions as text in several formats, piece by piece."""

from __future__ import annotations

from chatmemory.formats.downloads import download, file_response
from chatmemory.formats.exporting import (
    FORMATS,
    Format,
    awrite_export,
    export_sessions,
    write_export,
)
from chatmemory.formats.importing import READERS, FileReader, Lines, Outcome, Target, import_lines

__all__ = [
    "FORMATS",
    "READERS",
    "FileReader",
    "Format",
    "Lines",
    "Outcome",
    "Target",
    "awrite_export",
    "download",
    "export_sessions",
    "file_response",
    "import_lines",
    "write_export",
]
