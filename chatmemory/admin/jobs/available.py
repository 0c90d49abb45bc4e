"""The actions that the page of a session offers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from django.http import HttpRequest

from chatmemory.admin.jobs.words import TITLES, reason_of
from chatmemory.admin.readonly import LIST_FILTERS, ReadOnlyAdmin
from chatmemory.models import JobAction, Session
from chatmemory.services.jobs.actions import permission_of
from chatmemory.services.jobs.preview import skip_codes

if TYPE_CHECKING:
    from chatmemory.admin.choices import Label

ALTERNATIVES = {
    JobAction.RELEASE: JobAction.HOLD,
    JobAction.UNARCHIVE: JobAction.ARCHIVE,
    JobAction.RESTORE: JobAction.PURGE,
    JobAction.END: JobAction.STOP,
}
"""An action that is offered in place of another one, if it would change the session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A button for an action."""

    action: str
    label: Label
    url: str
    disabled: str
    """Why the action would change nothing now; empty if it would."""


def available_actions(
    model_admin: ReadOnlyAdmin, request: HttpRequest, session: Session
) -> list[Offer]:
    """Return the actions that the operator may perform on a session, in one statement.

    Of hold and release, archive and unarchive, it returns one. A restore or the end of a stuck
    reply is offered only if it would have an effect.
    """
    codes = skip_codes(session)
    useless = {name for name, code in codes.items() if code}
    useful = ALTERNATIVES.keys() - useless
    # The action that changes nothing, if the other one would: never both, and never neither.
    hidden = (ALTERNATIVES.keys() & useless) | {ALTERNATIVES[name] for name in useful} & useless
    filters = request.GET.get(LIST_FILTERS)
    kept = {LIST_FILTERS: filters} if filters else {}
    query = urlencode({"session": session.pk, **kept})
    return [
        Offer(
            action=name,
            label=TITLES[name],
            url=f"{model_admin.url_of('session_action', name)}?{query}",
            disabled=reason_of(codes[name]) if codes.get(name) else "",
        )
        for name in TITLES
        if name not in hidden and model_admin.permits(request, permission_of(name), obj=session)
    ]
