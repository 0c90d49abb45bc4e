"""Links to the conversations of other people in the admin, for staff who open an address of one."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from django.http import HttpRequest
from django.urls import NoReverseMatch, get_script_prefix, resolve, reverse

from chatmemory import codec
from chatmemory.models import Session

MAX_LINKS = 5
"""People can have chats under the same key."""


def console_links(request: HttpRequest, key: str) -> list[str]:
    """Return the addresses of the active conversations under a key that the person may view.

    Without the permission, the key is not looked up, so that neither the answer nor its time
    reveals whether it exists.
    """
    # The admin is found by its address: the pages do not depend on it, and a host can replace it.
    model_admin = _session_admin() if getattr(request.user, "is_staff", False) else None
    if model_admin is None or not model_admin.admin_site.has_permission(request):
        return []
    if not model_admin.has_view_permission(request):
        return []
    found = model_admin.get_queryset(request).filter(key=codec.key_of_address(key))
    rows = Session.objects.active().filter(pk__in=found.values("pk")).order_by("pk")[:MAX_LINKS]
    name = f"{model_admin.admin_site.name}:chatmemory_session_change"
    return [
        reverse(name, args=[row.pk])
        for row in rows
        if model_admin.has_view_permission(request, obj=row)
    ]


def _session_admin() -> Any:
    """Return the ModelAdmin of sessions; None without one."""
    try:
        address = reverse("admin:chatmemory_session_changelist")
    except NoReverseMatch:
        return None
    path = "/" + unquote(address).removeprefix(get_script_prefix())
    return getattr(resolve(path).func, "model_admin", None)
