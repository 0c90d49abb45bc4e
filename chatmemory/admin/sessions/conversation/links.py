"""Where the page of a session leads: the buttons of its actions."""

from __future__ import annotations

from dataclasses import dataclass

from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.translation import gettext as _

from chatmemory.admin.jobs.available import available_actions
from chatmemory.admin.privacy import Content, content_of
from chatmemory.admin.readonly import ReadOnlyAdmin
from chatmemory.models import AuditEntry, JobAction, Session

DANGEROUS = (JobAction.CLEAR, JobAction.PURGE)
"""Actions whose buttons warn."""

WITH_PAGE = (JobAction.TAG, JobAction.UNTAG)
"""Actions for which one session has a page of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionLink:
    """A button of the page."""

    name: str
    label: str
    url: str
    disabled: str = ""
    """Why the action would have no effect now; empty if it would."""
    is_dangerous: bool = False


def action_links(
    model_admin: ReadOnlyAdmin, request: HttpRequest, session: Session
) -> list[ActionLink]:
    """Return the actions that the operator may use on this session."""
    links = [
        ActionLink(
            name=offer.action,
            label=format_html("{}…", offer.label),
            url=offer.url,
            disabled=offer.disabled,
            is_dangerous=offer.action in DANGEROUS,
        )
        for offer in available_actions(model_admin, request, session)
        if offer.action not in WITH_PAGE
    ]
    if model_admin.permits(request, "tag_session", obj=session):
        links.append(_link("tags", _("Tags…"), model_admin.url_of("session_tags", session.pk)))
    is_masked = content_of(model_admin, request, session) is Content.MASKED
    if is_masked and model_admin.permits(request, "view_unmasked", obj=session):
        url = model_admin.url_of("session_reveal", session.pk)
        links.append(_link("reveal", _("Reveal…"), url))
    log = model_admin.url_of("session_history", session.pk)
    return [*links, *_audit(model_admin, request, session), _link("history", _("Admin log"), log)]


def _audit(model_admin: ReadOnlyAdmin, request: HttpRequest, session: Session) -> list[ActionLink]:
    if not request.user.has_perm("chatmemory.view_audit"):
        return []
    if not model_admin.admin_site.is_registered(AuditEntry):
        return []
    url = f"{model_admin.url_of('auditentry_changelist')}?session_pk={session.pk}"
    return [_link("audit", _("Audit"), url)]


def _link(name: str, label: str, url: str) -> ActionLink:
    return ActionLink(name=name, label=label, url=url)
