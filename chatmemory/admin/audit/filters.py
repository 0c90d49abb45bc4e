"""Filters of the audit: by action, operator, session, person and date."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib.admin.views.main import ChangeList
from django.contrib.auth import get_user_model
from django.db.models import Q
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from chatmemory.access.actors import all_scopes_of, check_person
from chatmemory.admin.choices import ChoiceFilter, FromFilter, TextFilter, UntilFilter
from chatmemory.admin.text import number_of
from chatmemory.errors import BadInput
from chatmemory.models import NO_READING, Session
from chatmemory.services.audit.actions import action_labels
from chatmemory.services.audit.keys import key_hashes

if TYPE_CHECKING:
    from chatmemory.admin.choices import Label


class ActionFilter(ChoiceFilter):
    """By the action; at first, all entries but readings, which a page writes by itself."""

    title = _("action")
    parameter_name = "action_is"
    conditions: ClassVar = {
        "changes": (_("Changes"), NO_READING),
        "all": (_("All"), Q()),
    }

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Label]]:
        return [*super().lookups(request, model_admin), *action_labels().items()]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        name = self.value()
        if name in self.conditions:
            return super().queryset(request, queryset)
        return queryset.filter(action=name)

    def value(self) -> str:
        given = super().value() or ""
        return given if given in {*self.conditions, *action_labels()} else "changes"

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        return islice(super().choices(changelist), 1, None)  # without Django's "All"


class ActorFilter(TextFilter):
    """By the operator's username, or the name that a command or server code states."""

    title = _("actor")
    parameter_name = "by"

    def condition(self, text: str) -> Q:
        users = get_user_model()
        named = users._default_manager.filter(**{users.USERNAME_FIELD: text})
        pks = [str(pk) for pk in named.values_list("pk", flat=True)]
        return Q(actor_id__in=[*pks, text])


class SessionFilter(TextFilter):
    """By the primary key of the session."""

    title = _("conversation ID, such as 17")
    parameter_name = "session_pk"
    input_mode = "numeric"

    def condition(self, text: str) -> Q | None:
        pk = number_of(text)
        return None if pk is None else Q(session_pk=pk)


class PersonFilter(TextFilter):
    """By the scope of a person: entries of the person, and of the sessions that are stored."""

    title = _("person, such as user:7")
    parameter_name = "person"

    def condition(self, text: str) -> Q | None:
        try:
            check_person(text)
        except BadInput:
            return None
        sessions = Session.objects.of_scopes(*all_scopes_of(text)).order_by()
        return Q(key_hash__in=key_hashes(text)) | Q(session_pk__in=sessions.values("pk"))


FILTERS: Any = (ActionFilter, ActorFilter, SessionFilter, PersonFilter, FromFilter, UntilFilter)
