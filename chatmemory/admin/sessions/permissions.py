"""The permissions of the pages and actions of sessions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.http import HttpRequest

from chatmemory.models import Session


class SessionPermissions:
    """A method `has_<permission>_permission(request, obj=None)` for each permission.

    A host may override them to restrict single sessions. Without a session a method returns whether
    the operator has the permission for any.
    """


def _method_of(permission: str) -> Callable[..., bool]:
    def has_permission(self: SessionPermissions, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm(f"chatmemory.{permission}")

    return has_permission


OF_OTHER_PAGES = {"view_audit", "view_health"}
for _name in {codename for codename, _ in Session._meta.permissions} - OF_OTHER_PAGES:
    setattr(SessionPermissions, f"has_{_name}_permission", _method_of(_name))
