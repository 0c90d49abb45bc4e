"""The page on which an operator searches words in messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.functional import cached_property
from django.utils.translation import gettext as _

from chatmemory.access.actors import check_own_name
from chatmemory.access.visits import person_of, visit_of_request
from chatmemory.admin.jobs.base import JobsPage, fields_of
from chatmemory.admin.jobs.words import error_text
from chatmemory.admin.keyset import MAX_COUNTED, MoreThan
from chatmemory.admin.people.pages import person_url
from chatmemory.admin.privacy import Content, content_of, names_of
from chatmemory.admin.readonly import LIST_FILTERS, operator
from chatmemory.admin.text import grouped, visible
from chatmemory.errors import BadInput, ChatMemoryError, RateLimited
from chatmemory.models import Message, Session, SessionQuerySet
from chatmemory.search.admin.forms import FIELDS, SearchForm
from chatmemory.search.admin.selection import Selection, select
from chatmemory.search.admin.tokens import (
    TOKEN_SECONDS,
    Continuation,
    TokenExpired,
    TokenInvalid,
    read_token,
    write_token,
)
from chatmemory.search.audit import record_search
from chatmemory.search.searching import search_sessions
from chatmemory.search.values import Hit, SearchPage
from chatmemory.services import Actor
from chatmemory.services.audit.entries import check_reason
from chatmemory.services.audit.readings import merged, record_reading

PAGE_HITS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A hit, as the page shows it."""

    url: str
    name: str
    person: str
    seq: int
    role: str
    created_at: datetime
    parts: list[tuple[str, bool]]
    """The snippet in parts, each with whether it was found; empty if the operator may not read."""


class SearchView(JobsPage):
    """Searches words by POST, so that no address, and so no log, has them.

    The address has the filters of the list, as that of the list does.
    """

    @cached_property
    def selection(self) -> Selection:
        return select(self.model_admin, self.request)

    def get(self, request: HttpRequest) -> HttpResponse:
        return self.render(SearchForm())

    def post(self, request: HttpRequest) -> HttpResponse:
        cursor, problem = None, ""
        data: Any = request.POST
        if "token" in request.POST:
            try:
                continued = self.continuation(request.POST["token"])
                data, cursor = {name: getattr(continued, name) for name in FIELDS}, continued.cursor
            except TokenExpired:
                problem = _("The search has ended, because it was too long ago. Search again.")
            except TokenInvalid:
                problem = _("This is not the continuation of a search of yours with these filters.")
        if problem:
            return self.render(SearchForm(), problem=problem)
        form = SearchForm(data)
        sessions = self.selection.sessions
        if sessions is None or not self.selection.is_selective or not form.is_valid():
            return self.render(form)
        try:
            return self.search(form, sessions, cursor)
        except ChatMemoryError as error:
            add_error(form, error)
            return self.render(form)

    def continuation(self, token: str) -> Continuation:
        """Return where a search continues. Raises TokenExpired, TokenInvalid."""
        return read_token(token, by=operator(self.request), filters=self.selection.filters)

    def search(
        self, form: SearchForm, sessions: SessionQuerySet, cursor: str | None
    ) -> HttpResponse:
        """Search, record it, and return the page with the hits. Raises ChatMemoryError."""
        given, by = form.cleaned_data, operator(self.request)
        self.check_own_name()
        check_reason(given["reason"])
        page = search_sessions(
            sessions=sessions.order_by(),
            by=by,
            query=given["words"],
            mode=given["mode"],
            role=given["role"] or None,
            limit=PAGE_HITS,
            cursor=cursor,
        )
        person = self.selection.person
        record_search(
            by=by,
            reason=given["reason"],
            query=given["words"],
            scope="" if person is None else person.scope,
            filters=self.selection.codes,
            mode=given["mode"],
            role=given["role"],
            conversations=page.searched,
            hits=len(page.hits),
        )
        found = self.found(page.hits, sessions, by)
        return self.render(form, page=page, found=found, token=self.next_token(given, page, by))

    def check_own_name(self) -> None:
        """Check that this is the operator: the audit would name another one. Raises Impersonated.

        Of the setting IMPERSONATOR.
        """
        user: Any = self.request.user
        by = Actor.user(user)
        check_own_name(person_of(visit_of_request(self.request, kind="page", by=by, user=user)))

    def next_token(self, given: dict[str, Any], page: SearchPage, by: Actor) -> str:
        """Return the token that continues the search; empty if it is complete."""
        if page.cursor is None:
            return ""
        more = Continuation(**{name: given[name] for name in FIELDS}, cursor=page.cursor)
        return write_token(more, by=by, filters=self.selection.filters)

    def found(self, hits: list[Hit], sessions: SessionQuerySet, by: Actor) -> list[Found]:
        """Return the hits of the operator's sessions, and record which of them are read."""
        known = self.sessions_of(hits, sessions)
        names = names_of(self.model_admin, self.request, list(known.values()))
        shown = {
            pk
            for pk, session in known.items()
            if content_of(self.model_admin, self.request, session) is Content.SHOWN
        }
        for pk in shown:
            seqs = [[hit.seq, hit.seq] for hit in hits if hit.session_pk == pk]
            for low, high in merged(seqs):
                record_reading(session=known[pk], by=by, from_seq=low, to_seq=high)
        roles = dict(Message.Role.choices)
        return [
            Found(
                url=self.url_of(hit),
                name=names[hit.session_pk],
                person=self.person_of(known[hit.session_pk]),
                seq=hit.seq,
                role=str(roles.get(hit.role, hit.role)),
                created_at=hit.created_at,
                parts=[*parts_of(hit)] if hit.session_pk in shown else [],
            )
            for hit in hits
            if hit.session_pk in known
        ]

    def sessions_of(self, hits: list[Hit], sessions: SessionQuerySet) -> dict[int, Session]:
        """Return the sessions of hits by primary key; one may have been removed meanwhile."""
        wanted = sessions.filter(pk__in={hit.session_pk for hit in hits}).order_by()
        rows = wanted.select_related("owner").defer("instructions", "metadata")
        return {session.pk: session for session in rows}

    def person_of(self, session: Session) -> str:
        """Return the link to the person, unless all hits are of one."""
        return "" if self.selection.person else self.model_admin.person(session)  # type: ignore[attr-defined]  # of SessionAdmin

    def url_of(self, hit: Hit) -> str:
        """Return the URL of a message in its conversation."""
        address = self.model_admin.url_of("session_change", hit.session_pk)
        query = {"seq": hit.seq, LIST_FILTERS: self.selection.filters}
        return f"{address}?{urlencode(query)}#m{hit.seq}"

    def render(
        self,
        form: SearchForm,
        *,
        page: SearchPage | None = None,
        found: Iterable[Found] = (),
        token: str = "",
        problem: str = "",
    ) -> HttpResponse:
        """Return the page with the form, and the hits after a search."""
        selection, person = self.selection, self.selection.person
        context = {
            **self.page(_("Search in messages")),
            "selection": selection,
            "person": person,
            "person_url": "" if person is None else person_url(self.model_admin, person.scope),
            "selected": (selected := self.selected()),
            "selected_text": str(MoreThan(MAX_COUNTED))
            if selected > MAX_COUNTED
            else grouped(selected),
            "list_url": f"{self.model_admin.url_of('session_changelist')}?{selection.filters}",
            "words": visible(form["words"].value() or ""),
            "form": fields_of(form, focus="words" if page is None else None),
            "errors": form.errors,
            "problems": [*form.non_field_errors(), *filter(None, [problem])],
            "reasons": self.reasons(),
            "page": page,
            "found": found,
            "is_masked": any(not one.parts for one in found),
            "token": token,
            "minutes": TOKEN_SECONDS // 60,
        }
        return TemplateResponse(self.request, "admin/chatmemory_search/page.html", context)

    def selected(self) -> int:
        """Return how many conversations are searched, or 10,001."""
        sessions = self.selection.sessions
        if sessions is None or not self.selection.is_selective:
            return 0
        count: int = sessions.order_by()[: MAX_COUNTED + 1].count()
        return count


def add_error(form: SearchForm, error: ChatMemoryError) -> None:
    """Add an error of the search to its field, in the operator's language."""
    match error:
        case BadInput(field="query", code="empty"):
            form.add_error("words", _("Type at least one word."))
        case BadInput(field="query"):
            form.add_error("words", error_text(error))
        case BadInput(field="reason"):
            form.add_error("reason", error_text(error))
        case RateLimited():
            form.add_error(None, _("Another search of yours is still running. Try again."))
        case _:
            form.add_error(None, error_text(error))


def parts_of(hit: Hit) -> Iterator[tuple[str, bool]]:
    """Yield the parts of a snippet, each with whether it was found."""
    at = 0
    for start, end in hit.ranges:
        yield visible(hit.snippet[at:start]), False
        yield visible(hit.snippet[start:end]), True
        at = end
    yield visible(hit.snippet[at:]), False
