"""Links from the host's own pages to the conversations of a user in the admin."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any
from urllib.parse import unquote

from django.contrib.admin import AdminSite
from django.contrib.auth import get_user_model
from django.http import HttpRequest
from django.urls import NoReverseMatch, get_script_prefix, resolve, reverse

from chatmemory.access.actors import user_scope
from chatmemory.admin.privacy import names_of
from chatmemory.admin.readonly import MAX_DECIDED
from chatmemory.admin.sessions.model_admin import SessionAdmin
from chatmemory.admin.states import State, last_turns, state_of

MAX_LINKS = 20
"""The default limit of `conversation_links`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationLink:
    """What a page of the host shows of a conversation."""

    title: str
    """The title or the first words, as far as the operator may read them; otherwise the key."""
    url: str
    """The address of its page in the admin."""
    last_message_at: datetime | None
    state: State


def conversation_links(
    user: object, *, request: HttpRequest, site: AdminSite | None = None, limit: int = MAX_LINKS
) -> list[ConversationLink]:
    """Return links to a user's active conversations that the operator may view.

    The last active come first, those without messages last. At most `limit`; if the host decides by
    row, of the first `MAX_DECIDED`. Empty if the operator may not use the site or not view
    conversations, and if `user` is no user. `site` is by default that of the request, and outside
    the admin the default one. Executes at most three statements, and records no reading.
    """
    model_admin = _session_admin(request, site)
    if model_admin is None or not isinstance(user, get_user_model()):
        return []
    sessions: Any = model_admin.get_queryset(request).filter(scope=user_scope(user))
    rows = sessions.active().most_recent_first().select_related("owner")
    examined = MAX_DECIDED if model_admin.decides_by_row("view") else limit
    found = rows.defer("instructions", "metadata")[:examined]
    visible = (row for row in found if model_admin.permits(request, "view", obj=row))
    shown = list(islice(visible, limit))
    names, turns = names_of(model_admin, request, shown), last_turns([row.pk for row in shown])
    return [
        ConversationLink(
            title=names[row.pk],
            url=model_admin.url_of("session_change", row.pk),
            last_message_at=row.last_message_at,
            state=state_of(row, turns.get(row.pk, (None, None))[0]),
        )
        for row in shown
    ]


def _session_admin(request: HttpRequest, site: AdminSite | None) -> SessionAdmin | None:
    """Return the ModelAdmin to whose pages the links lead, if the operator may view them."""
    current = getattr(request, "current_app", getattr(request.resolver_match, "namespace", None))
    try:
        address = reverse(
            "admin:chatmemory_session_changelist", current_app=site.name if site else current
        )
    except NoReverseMatch:
        return None
    # By the address, because a site that shows other conversations can have the same name.
    path = "/" + unquote(address).removeprefix(get_script_prefix())
    found = getattr(resolve(path).func, "model_admin", None)
    if not isinstance(found, SessionAdmin) or site not in (None, found.admin_site):
        return None
    may_view = found.admin_site.has_permission(request) and found.permits(request, "view")
    return found if may_view else None
