"""Filters of the admin lists; each choice is one inexpensive condition."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db.models import Q
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from chatmemory.services import SERVER

if TYPE_CHECKING:
    from django.utils.functional import _StrPromise

    Label = str | _StrPromise


class ChoiceFilter(admin.SimpleListFilter):
    """A filter whose choices are named conditions."""

    conditions: ClassVar[dict[str, tuple[Label, Q]]]

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Label]]:
        return [(name, label) for name, (label, _condition) in self.conditions.items()]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        name = self.value()
        return queryset.filter(self.conditions[name][1]) if name in self.conditions else queryset


class StateFilter(ChoiceFilter):
    """By state; without a choice, excludes purged and expired sessions."""

    title = _("state")
    parameter_name = "state"
    conditions: ClassVar = {
        "running": (_("Replying now"), Q(running__isnull=False)),
        "archived": (_("Archived"), Q(archived_at__isnull=False)),
        "held": (_("On hold"), Q(held_at__isnull=False)),
        "expired": (_("Expired"), Q(removed_at__isnull=True)),
        "purged": (_("Purged"), Q(removed_at__isnull=False)),
    }

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        chosen = super().queryset(request, queryset)
        match self.value():
            case "purged":
                return chosen
            case "expired":
                return chosen.expired()
            case _:
                return chosen.active()

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        everything, *others = super().choices(changelist)
        yield {**everything, "display": _("Not purged or expired")}
        yield from others


class ActivityFilter(ChoiceFilter):
    """By the day of the last message, in UTC."""

    title = _("last message")
    parameter_name = "active"

    @property
    def conditions(self) -> dict[str, tuple[Label, Q]]:  # type: ignore[override]  # depends on the current day
        today = datetime.now(UTC).date()

        def ago(days: int) -> Any:
            return today - timedelta(days=days)

        return {
            "today": (_("Today"), Q(last_active_day__gte=today)),
            "week": (_("Past 7 days"), Q(last_active_day__gte=ago(7))),
            "month": (_("Past 30 days"), Q(last_active_day__gte=ago(30))),
            "older": (_("More than 30 days ago"), Q(last_active_day__lt=ago(30))),
            "oldest": (_("More than a year ago"), Q(last_active_day__lt=ago(365))),
            "never": (_("Never"), Q(last_message_at__isnull=True)),
        }


class ScopeFilter(ChoiceFilter):
    """By the kind of the session's scope."""

    title = _("scope")
    parameter_name = "scope_kind"
    conditions: ClassVar = {
        "user": (_("Users"), Q(scope__startswith="user:")),
        "visitor": (_("Visitors"), Q(scope__startswith="visitor:")),
        "server": (_("Server"), Q(scope=SERVER)),
    }


class ActionFilter(ChoiceFilter):
    """By the action of the audit entry."""

    title = _("action")
    parameter_name = "action_is"
    conditions: ClassVar = {
        name: (label, Q(action=name))
        for name, label in (
            ("read", _("Read")),
            ("trim", _("Trimmed")),
            ("clear", _("Cleared")),
            ("purge", _("Purged")),
            ("restore", _("Restored")),
            ("db_restored", _("Database restored")),
            ("redact", _("Redacted")),
            ("erase_begun", _("Erasure started")),
            ("erase", _("Erased")),
            ("user_deleted", _("User deleted")),
            ("hold", _("Put on hold")),
            ("release", _("Released")),
            ("archive", _("Archived")),
            ("unarchive", _("Unarchived")),
            ("tag", _("Tagged")),
            ("untag", _("Tag removed")),
            ("export", _("Exported")),
            ("import", _("Imported")),
            ("refused", _("Refused")),
            ("repair", _("Repaired")),
        )
    }
