"""Export and import sessions as text in several forms, piece by piece."""

from __future__ import annotations

from chatmemory.transfer.downloads import download, file_response
from chatmemory.transfer.exporting import (
    FORMS,
    Form,
    awrite_export,
    export_sessions,
    write_export,
)
from chatmemory.transfer.importing import Lines, Outcome, Target, import_lines

__all__ = [
    "FORMS",
    "Form",
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
