"""The previous and the next session of the list from which an operator opened a session."""

from __future__ import annotations

from copy import copy
from typing import ClassVar

from django.contrib import messages
from django.contrib.admin.options import IncorrectLookupParameters
from django.core.exceptions import SuspiciousOperation
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from chatmemory.admin.keyset import beyond, column_of, list_without_rows, reversed_order
from chatmemory.admin.readonly import LIST_FILTERS, ReadOnlyAdmin
from chatmemory.admin.sessions.conversation.base import ConversationPage
from chatmemory.models import Session


class NextView(ConversationPage):
    """Redirects to the next session of the list, found by one statement."""

    is_next: ClassVar[bool] = True
    at_end: ClassVar[str | Promise] = _("This is the last conversation of the list.")

    def get(self, request: HttpRequest, pk: int) -> HttpResponse:
        session = self.session
        neighbor = _neighbor(self.model_admin, request, session, is_next=self.is_next)
        if neighbor is None:
            messages.info(request, str(self.at_end))
        return redirect(self.page_url(neighbor or session.pk))


class PreviousView(NextView):
    """Redirects to the previous session of the list."""

    is_next = False
    at_end = _("This is the first conversation of the list.")


def _neighbor(
    model_admin: ReadOnlyAdmin, request: HttpRequest, session: Session, *, is_next: bool
) -> int | None:
    """Return the primary key of the next or previous session; None at the end of the list."""
    of_list = copy(request)
    of_list.GET = QueryDict(request.GET.get(LIST_FILTERS, ""))
    try:
        listed = list_without_rows(model_admin, of_list)
    except (IncorrectLookupParameters, SuspiciousOperation):
        return None
    ordering = listed.get_ordering(of_list, listed.queryset)
    if not is_next:
        ordering = reversed_order(ordering)
    position = {column_of(name): getattr(session, column_of(name)) for name in ordering}
    others = listed.queryset.filter(beyond(ordering, position, listed.queryset.db))
    rows = others.order_by(*ordering).defer("instructions", "metadata")
    neighbor = model_admin.first_visible(request, rows)
    return None if neighbor is None else neighbor.pk
