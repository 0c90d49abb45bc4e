"""The command that creates groups with the permissions of common roles."""

from __future__ import annotations

from typing import Any

from django.apps import apps
from django.contrib.auth.models import Group, Permission
from django.core.management import CommandError, CommandParser
from django.db import transaction
from django.db.models import Q, QuerySet

from chatmemory.management.counting import counted
from chatmemory.management.reporting import ReportingCommand
from chatmemory.management.roles import ROLES, roles


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
            for name, permissions in roles().items():
                added = _missing_permissions(name, permissions)
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


def _missing_permissions(group: str, permissions: list[str]) -> QuerySet[Permission, Any]:
    """Return the permissions, each `app.codename`, that a group lacks. Raises CommandError."""
    chosen = Q(pk__in=[])
    for permission in permissions:
        app, codename = permission.split(".")
        chosen |= Q(content_type__app_label=app, codename=codename)
    known = Permission.objects.filter(chosen)
    if known.count() < len(permissions):
        raise CommandError("Some permissions do not exist yet. Run migrate first.")
    return known.exclude(group__name=group)
