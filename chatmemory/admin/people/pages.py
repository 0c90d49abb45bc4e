"""The search for a person, and the page of what is stored of one."""

from __future__ import annotations

from typing import Any, ClassVar

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.utils.functional import Promise, cached_property
from django.utils.http import urlencode
from django.utils.translation import gettext_lazy as _
from django.views import View

from chatmemory import services
from chatmemory.access.actors import all_scopes_of
from chatmemory.admin.people.finding import (
    Person,
    find_people,
    is_person,
    searches_users,
    visible_person,
)
from chatmemory.admin.privacy import names_of
from chatmemory.admin.readonly import ReadOnlyAdmin, operator
from chatmemory.admin.sections import PEOPLE, filter_links
from chatmemory.admin.states import State, last_turns, state_of
from chatmemory.admin.text import number_of
from chatmemory.database.batches import in_pages
from chatmemory.models import JobAction, Session, SessionQuerySet, Turn
from chatmemory.services.erasure.erasure import stored_sessions_of
from chatmemory.services.erasure.past_erasures import (
    ErasureRecord,
    KnownErasure,
    find_erasures,
    find_erasures_of_key,
)
from chatmemory.services.jobs.actions import ACTIONS

PAGE_ROWS = 50
INACTIVE = (State.PURGED, State.EXPIRED)
"""The states of sessions that an action on all of a person does not reach."""


class PeoplePage(View):
    """A page of the admin that is not about one session."""

    model_admin: ReadOnlyAdmin = None  # type: ignore[assignment]  # as_view sets it
    permissions: ClassVar[tuple[str, ...]] = ()
    """The permissions that the page requires in addition to viewing sessions."""
    title: str | Promise

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        self.model_admin.require(request, "view", *self.permissions)
        return super().dispatch(request, *args, **kwargs)

    def render(self, template: str, **context: object) -> HttpResponse:
        """Return the page with the context that all admin pages need."""
        full = self.model_admin.page_context(
            self.request, section=PEOPLE, title=self.title, **context
        )
        return TemplateResponse(self.request, f"admin/chatmemory/person/{template}", full)


class PeopleView(PeoplePage):
    """Finds persons by name, e-mail address, scope or session key."""

    title = _("People")

    def get(self, request: HttpRequest) -> HttpResponse:
        term = request.GET.get("q", "")
        found = find_people(self.model_admin, request, term)
        if len(found) == 1:
            return redirect(person_url(self.model_admin, found[0].scope))
        return self.render(
            "people.html",
            term=term,
            searches_users=searches_users(self.model_admin, request),
            people=[(one, person_url(self.model_admin, one.scope)) for one in found],
            erasures=self._erasures_of_key(term)
            if term.isprintable() and term and not found
            else None,
        )

    def _erasures_of_key(self, term: str) -> list[KnownErasure] | None:
        """Return the erasures of a session with this key; None if the operator may not know."""
        if not may_see_erasures(self.model_admin, self.request):
            return None
        return find_erasures_of_key(session_key=term.strip())


class PersonPage(PeoplePage):
    """A page about the person whose scope is in the query."""

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        self.model_admin.require(request, "view", *self.permissions)
        if not is_person(self.scope):
            raise Http404
        return super().dispatch(request, *args, **kwargs)

    @property
    def scope(self) -> str:
        return self.request.GET.get("scope", "")

    @cached_property
    def person(self) -> Person:
        return visible_person(self.model_admin, self.request, self.scope)

    def sessions(self) -> SessionQuerySet:
        """Return the person's sessions that the operator can view, the newest first."""
        found: Any = self.model_admin.get_queryset(self.request)
        of_person: SessionQuerySet = found.of_scopes(*all_scopes_of(self.scope))
        return of_person.order_by("-pk")

    def is_whole(self) -> bool:
        """Return whether the operator can view all sessions of the person, with the permissions.

        What acts on all of them is refused otherwise.
        """
        names, own = ("view", *self.permissions), self.sessions()
        if stored_sessions_of(self.scope).exclude(pk__in=own.order_by().values("pk")).exists():
            return False
        return not self.model_admin.decides_by_row(*names) or all(
            self.model_admin.permits(self.request, *names, obj=session)
            for session in in_pages(own, "-pk")
        )


class PersonView(PersonPage):
    """Shows the sessions, the numbers and the erasures of a person."""

    def get(self, request: HttpRequest) -> HttpResponse:
        self.title = self.person.label
        sessions = self.sessions()
        if (before := number_of(request.GET.get("before", ""))) is not None:
            sessions = sessions.filter(pk__lt=before)
        page = list(sessions.defer("instructions", "metadata")[: PAGE_ROWS + 1])
        shown = [one for one in page[:PAGE_ROWS] if self.permits("view", one)]
        names = names_of(self.model_admin, request, shown)
        rows = [(one, names[one.pk], state_of(one, last)) for one, last in _with_last(shown)]
        is_more = len(page) > PAGE_ROWS
        # What an action on all of the person reaches may be on another page.
        is_shown = any(state not in INACTIVE for _session, _name, state in rows)
        has_active = is_shown or self.sessions().active().exists()
        site = self.model_admin.admin_site
        return self.render(
            "person.html",
            person=self.person,
            stored=services.count_stored_data(sessions=self.sessions(), scope=self.scope),
            rows=rows,
            links=has_active and filter_links(site, request, urlencode({"owner_is": self.scope})),
            older=page[PAGE_ROWS - 1].pk if is_more else None,
            hold_url=has_active and self._url_for_all(JobAction.HOLD),
            purge_url=has_active and self._url_for_all(JobAction.PURGE),
            record=self._erasures(),
            may_export=self.permits("export_history"),
            may_erase=self.permits("erase_person"),
        )

    def permits(self, name: str, session: Session | None = None) -> bool:
        return self.model_admin.permits(self.request, name, obj=session)

    def _url_for_all(self, action: str) -> str:
        """Return the URL of an action on all of the person in the list; empty if not permitted."""
        if not self.permits(ACTIONS[action].permission):
            return ""
        query = {"all": "1", "owner_is": self.scope, "back": self.request.get_full_path()}
        return f"{self.model_admin.url_of('session_action', action)}?{urlencode(query)}"

    def _erasures(self) -> ErasureRecord | None:
        if not may_see_erasures(self.model_admin, self.request):
            return None
        return find_erasures(by=operator(self.request), scope=self.scope)


def _with_last(sessions: list[Session]) -> list[tuple[Session, Turn | None]]:
    """Return the sessions, each with its last turn if that has ended."""
    turns = last_turns([session.pk for session in sessions])
    return [(session, turns.get(session.pk, (None, None))[0]) for session in sessions]


def may_see_erasures(model_admin: ReadOnlyAdmin, request: HttpRequest) -> bool:
    """Return whether the operator may know who was erased, which the audit records."""
    return model_admin.permits(request, "erase_person") or request.user.has_perm(
        "chatmemory.view_audit"
    )


def person_url(model_admin: ReadOnlyAdmin, scope: str, page: str = "person") -> str:
    """Return the URL of a page about a person."""
    return f"{model_admin.url_of(f'session_{page}')}?{urlencode({'scope': scope})}"
