"""The command that creates groups with the permissions of common roles."""

from __future__ import annotations

from typing import Any

from django.apps import apps
from django.contrib.auth.models import Group, Permission
from django.core.management import CommandError, CommandParser
from django.db import transaction
from django.db.models import QuerySet

from chatmemory.management.counting import counted
from chatmemory.management.reporting import ReportingCommand

READING = ("view_session", "view_transcript", "note_session", "tag_session")
ROLES = {
    "Chat support": (*READING, "stop_turn", "archive_session"),
    "Chat lead": (
        *READING,
        "stop_turn",
        "archive_session",
        "trim_history",
        "clear_history",
        "purge_history",
        "restore_history",
        "redact_message",
        "hold_session",
        "view_unmasked",
        "view_numbers",
    ),
    "Chat data protection": (
        "view_session",
        "view_transcript",
        "hold_session",
        "restore_history",
        "redact_message",
        "export_history",
        "erase_person",
        "view_audit",
    ),
    "Chat auditor": ("view_audit", "view_numbers"),
}
"""The suggested groups, each with its permissions."""


class Command(ReportingCommand):
    """Adds permissions, and removes none: a project may have changed a group."""

    is_long = False
    help = (
        "Create the groups " + ", ".join(ROLES) + " with suggested permissions. Existing groups "
        "keep their permissions, and get the ones that are missing."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--dry-run", action="store_true", help="only print what would be added")

    def handle(self, *, dry_run: bool, **options: object) -> None:
        if not apps.is_installed("django.contrib.auth"):
            raise CommandError("Add django.contrib.auth to INSTALLED_APPS.")
        with transaction.atomic():
            for name, codenames in ROLES.items():
                added = _missing(name, codenames)
                if not dry_run:
                    Group.objects.get_or_create(name=name)[0].permissions.add(*added)
                verb = "would get" if dry_run else "got"
                what = ", ".join(sorted(found.codename for found in added)) or "nothing new"
                self.report(
                    f"{name} {verb} {counted(len(added), 'permission')}: {what}",
                    group=name,
                    permissions=sorted(found.codename for found in added),
                    dry_run=dry_run,
                )


def _missing(group: str, codenames: tuple[str, ...]) -> QuerySet[Permission, Any]:
    """Return the permissions that a group does not have. Raises CommandError."""
    known = Permission.objects.filter(
        content_type__app_label="chatmemory",
        content_type__model="session",
        codename__in=codenames,
    )
    if known.count() < len(codenames):
        raise CommandError("Some permissions do not exist yet. Run migrate first.")
    return known.exclude(group__name=group)
