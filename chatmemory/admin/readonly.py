"""What the admin pages here share: nothing is edited, nothing big is counted."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.auth.base_user import AbstractBaseUser
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.functional import cached_property

from chatmemory.services import Actor


class BoundedPaginator(Paginator):
    """Counts no further than its last page; a list that long is searched, not paged."""

    MOST = 10_000
    object_list: QuerySet[Any]

    @cached_property
    def count(self) -> int:
        return self.object_list.order_by()[: self.MOST].count()


class ReadOnlyAdmin(admin.ModelAdmin):
    """Rows to look at. They are evidence: changed and removed by the services alone."""

    list_per_page = 50
    paginator = BoundedPaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    sortable_by = ()

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


def operator(request: HttpRequest) -> Actor:
    """Who looks at this page."""
    if not isinstance(request.user, AbstractBaseUser):
        raise PermissionDenied
    return Actor.operator(request.user)
