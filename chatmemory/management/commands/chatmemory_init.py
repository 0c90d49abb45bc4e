"""The command that prints what a project lacks for the chat."""

from __future__ import annotations

from itertools import groupby

from django.core.management import CommandError

from chatmemory.management.counting import counted
from chatmemory.management.missing import missing_parts
from chatmemory.management.reporting import ReportingCommand


class Command(ReportingCommand):
    """Writes nothing: its output is the lines to add, with the names of the project."""

    is_long = False
    requires_system_checks = ()  # they would report what is still missing
    help = (
        "Print what the settings, the URLs and the ASGI application of the project still lack for "
        "the chat, as lines to copy. Writes nothing. The exit status is 1 if something is missing."
    )

    def handle(self, **options: object) -> None:
        parts = sorted(missing_parts(), key=lambda part: part.is_optional)
        for (is_optional, file), group in groupby(parts, lambda p: (p.is_optional, p.file)):
            title = f"{file}: add at the end" if file else "then run"
            heading = f"# {'optional, ' if is_optional else ''}{title}\n"
            for part in group:
                values = {"file": file, "code": part.code, "optional": is_optional}
                self.report(f"{heading}{part.code}\n\n", **values)
                heading = ""
        missing = sum(not part.is_optional for part in parts)
        result = f"{counted(missing, 'part')} missing." if missing else "Nothing is missing."
        self.report(result, missing=missing)
        if missing:
            raise CommandError("Add the lines that are not optional, and run this again.")
