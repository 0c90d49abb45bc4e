"""Deletion of users in the admin: previews their sessions, and audits the operator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from django.apps import apps
from django.contrib import admin
from django.contrib.admin.sites import all_sites
from django.contrib.auth import get_user_model
from django.core import checks
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from chatmemory import services
from chatmemory.admin.readonly import operator
from chatmemory.conf import settings
from chatmemory.models import Session
from chatmemory.services.retention.accounts import AccountDeletionPlan, preview_forgetting

MAX_LISTED = 100
"""The confirmation names at most this many sessions of each group."""


class ChatMemoryUserAdminMixin(admin.ModelAdmin):
    """Mixin for the ModelAdmin of the user model; put it before the base class.

    `USER_DELETED` selects whether sessions are purged or erased. A background thread does so after
    the commit.
    """

    def get_deleted_objects(
        self, objs: Sequence[Any] | QuerySet[Any], request: HttpRequest
    ) -> tuple[list[Any], dict[str, int], set[str], list[str]]:
        listed, counts, missing, protected = super().get_deleted_objects(objs, request)
        scopes = [services.user_scope(user) for user in objs]
        forgetting = preview_forgetting(scopes=scopes)
        if forgetting.removed:
            counts[str(Session._meta.verbose_name_plural)] = len(forgetting.removed)
        return [*listed, *_described(forgetting)], counts, missing, protected

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        with services.deleting_users(by=operator(request), in_background=True):
            super().delete_model(request, obj)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        with services.deleting_users(by=operator(request), in_background=True):
            super().delete_queryset(request, queryset)


def _described(forgetting: AccountDeletionPlan) -> Iterable[Any]:
    """Yield titles and lists, in the nested form of Django's confirmation page."""
    removed = {
        "purge": _("Conversations to purge (restorable for %(days)s days): %(n)s"),
        "erase": _("Conversations to erase permanently: %(n)s"),
    }.get(settings.USER_DELETED, "")
    groups = {
        removed: forgetting.removed,
        _("Conversations kept because of a hold: %(n)s"): forgetting.held,
        _("Conversations kept: %(n)s"): forgetting.kept,
    }
    for title, sessions in groups.items():
        if sessions:
            yield title % {"n": len(sessions), "days": settings.UNDO_DAYS}
            yield [*_named_sessions(sessions)]


def _named_sessions(sessions: Mapping[int, int]) -> Iterable[str | Promise]:
    for pk, messages in islice(sessions.items(), MAX_LISTED):
        line = ngettext(
            "Conversation %(pk)s: %(messages)s message",
            "Conversation %(pk)s: %(messages)s messages",
            messages,
        )
        yield line % {"pk": pk, "messages": messages}
    if len(sessions) > MAX_LISTED:
        yield _("And %(n)s more") % {"n": len(sessions) - MAX_LISTED}


@checks.register(deploy=True)
def check_user_admin(app_configs: Any, **_: Any) -> list[checks.CheckMessage]:
    """Warn of a ModelAdmin of the user model that does not use the mixin."""
    user_model = get_user_model()
    users = [model for model in apps.get_models() if issubclass(model, user_model)]
    admins = [
        (site.name, site.get_model_admin(model))
        for site in all_sites
        for model in users
        if site.is_registered(model)
    ]
    return [
        checks.Warning(
            f"{type(found).__name__} of the admin site {name!r} deletes users without listing "
            "their chat sessions.",
            hint="Add chatmemory.admin.ChatMemoryUserAdminMixin before the base class. The audit "
            "then also names the operator.",
            id="chatmemory.W014",
        )
        for name, found in admins
        if not isinstance(found, ChatMemoryUserAdminMixin)
    ]
