"""The sections of the console: the bar of links on each of its pages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.contrib.admin import AdminSite
from django.db.models import Model
from django.http import HttpRequest
from django.urls import reverse
from django.utils.translation import gettext_lazy as _

from chatmemory.models import AuditEntry, Job, Maintenance, Session

if TYPE_CHECKING:
    from chatmemory.admin.choices import Label


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of the console. Those who may view its model on a site see a link there."""

    label: Label
    page: str
    """The name of the URL, in the namespace of the site."""
    model: type[Model]
    of_filters: bool = False
    """Whether its page is about the conversations that the list selects, by the same query. The
    list with a filter and the page of a person link to it; the bar does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionLink:
    """A link to a section."""

    label: Label
    url: str
    is_current: bool = False


SESSIONS = Section(label=_("Conversations"), page="chatmemory_session_changelist", model=Session)
PEOPLE = Section(label=_("People"), page="chatmemory_session_people", model=Session)
JOBS = Section(label=_("Jobs"), page="chatmemory_job_changelist", model=Job)
AUDIT = Section(label=_("Audit"), page="chatmemory_auditentry_changelist", model=AuditEntry)
HEALTH = Section(label=_("Health"), page="chatmemory_maintenance_changelist", model=Maintenance)

_registered: list[Section] = []


def register_section(section: Section) -> None:
    """Add a section of an optional app, from the module of its admin; a repeated call does nothing.

    The bar shows it behind the jobs, in the order of the calls.
    """
    if section not in _registered:
        _registered.append(section)


def sections() -> list[Section]:
    """Return all sections, in the order of the bar."""
    added = [section for section in _registered if not section.of_filters]
    return [SESSIONS, PEOPLE, JOBS, *added, AUDIT, HEALTH]


def visible_sections(site: AdminSite, request: HttpRequest) -> list[Section]:
    """Return the sections that the operator may see on a site."""
    return [section for section in sections() if may_view(site, request, section.model)]


def section_links(
    site: AdminSite, request: HttpRequest, current: Section | None
) -> list[SectionLink]:
    """Return the links of the bar; none if there is only one."""
    shown = visible_sections(site, request)
    if len(shown) < 2:
        return []
    return [
        SectionLink(
            label=section.label,
            url=reverse(f"admin:{section.page}", current_app=site.name),
            is_current=section is current,
        )
        for section in shown
    ]


def filter_links(site: AdminSite, request: HttpRequest, query: str) -> list[SectionLink]:
    """Return the links to pages about what a query of the list selects; none without a query."""
    return [
        SectionLink(
            label=section.label,
            url=f"{reverse(f'admin:{section.page}', current_app=site.name)}?{query}",
        )
        for section in _registered
        if query and section.of_filters and may_view(site, request, section.model)
    ]


def may_view(site: AdminSite, request: HttpRequest, model: type[Model]) -> bool:
    """Return whether the operator may view a model on our pages, which the site may not have."""
    if not site.is_registered(model):
        return False
    model_admin: Any = site.get_model_admin(model)
    # Another ModelAdmin, which a host may register, has none of our pages.
    is_ours = hasattr(model_admin, "section")
    return bool(is_ours and model_admin.has_view_permission(request))
