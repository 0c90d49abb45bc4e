"""The base of the ModelAdmins: permissions, audited refusals, read-only rows, lists by keyset."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, ClassVar, NoReturn

from django.apps import apps
from django.conf import settings as django_settings
from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import unquote
from django.contrib.auth import get_permission_codename, get_user_model
from django.core.exceptions import (
    BadRequest,
    FieldDoesNotExist,
    PermissionDenied,
)
from django.db.models import QuerySet
from django.db.models.constants import LOOKUP_SEP
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.template.loader import get_template
from django.urls import URLPattern, reverse
from django.utils.text import capfirst

from chatmemory.admin import sections
from chatmemory.admin.keyset import KeysetChangeList
from chatmemory.admin.sections import Section
from chatmemory.admin.text import number_of
from chatmemory.csp import with_policy
from chatmemory.models import Session
from chatmemory.services import Actor
from chatmemory.services.audit import entries

MAX_DECIDED = 200
"""Rows about which a host decides one by one, in one request."""
LIST_FILTERS = "_changelist_filters"
"""The filters of the list from which the operator came; Django adds them to the links."""


class ReadOnlyAdmin(admin.ModelAdmin):
    """Shows rows that only services may change and remove, because they are evidence.

    Each page checks its permission with `has_<name>_permission(request, obj)` and finds its row in
    `get_queryset(request)`, so a subclass can restrict operators by overriding only these. A row
    that they exclude is a 404, like a row that does not exist.
    """

    view_codename: ClassVar[str]
    """The permission that every page of this model requires."""
    section: ClassVar[Section | None] = None
    """The section of the console to which the pages of this model belong."""
    list_per_page = 50
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    sortable_by = ()

    class Media:
        css = {"all": ["chatmemory/admin/admin.css"]}  # noqa: RUF012  # Django's form

    @property
    def urls(self) -> list[URLPattern]:
        """Return the addresses; their pages send the policy of the chat pages."""
        found: list[URLPattern] = super().urls
        for one in found:
            one.callback = _with_policy(one.callback)
        return found

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm(f"{self.opts.app_label}.{self.view_codename}")

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request)

    def get_model_perms(self, request: HttpRequest) -> dict[str, bool]:
        """Return no permissions, which hides the model in the index, if the bar leads to it.

        The index has the audit, and the first section that the operator may see.
        """
        shown = sections.visible_sections(self.admin_site, request)[:1]
        is_listed = self.section in (*shown, sections.AUDIT)
        return super().get_model_perms(request) if is_listed else {}

    def page_context(
        self, request: HttpRequest, *, section: Section | None = None, **context: Any
    ) -> dict[str, Any]:
        """Return the context of a page of the console, which belongs to a section."""
        links = sections.section_links(self.admin_site, request, section or self.section)
        site = self.admin_site.each_context(request)
        return {**site, "opts": self.opts, "sections": links, **context}

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def permits(self, request: HttpRequest, *names: str, obj: Any = None) -> bool:
        """Return whether the operator has all these permissions, for this row if one is given."""
        args = (request,) if obj is None else (request, obj)
        return all(getattr(self, f"has_{name}_permission")(*args) for name in names)

    def decides_by_row(self, *names: str) -> bool:
        """Return whether the host overrides one of these permissions.

        It may then depend on the row, so a queryset does not contain the decision.
        """
        own = next(cls for cls in type(self).__mro__ if cls.__module__.startswith("chatmemory."))
        methods = [f"has_{name}_permission" for name in names]
        return any(getattr(type(self), name) is not getattr(own, name) for name in methods)

    def first_visible(self, request: HttpRequest, rows: QuerySet[Any]) -> Any:
        """Return the first of these rows that the operator may view, or None.

        If the host decides by row, at most `MAX_DECIDED` are read.
        """
        limit = MAX_DECIDED if self.decides_by_row("view") else 1
        found = (row for row in rows[:limit] if self.permits(request, "view", obj=row))
        return next(found, None)

    def require(self, request: HttpRequest, *names: str, sessions: Iterable[Session] = ()) -> None:
        """Raise PermissionDenied if one of these permissions is missing, and record the first.

        `sessions` are the sessions that the request names.
        """
        for name in names:
            if not self.permits(request, name):
                self.refuse(request, name, sessions)

    def refuse(self, request: HttpRequest, name: str, sessions: Iterable[Session] = ()) -> NoReturn:
        """Record that this permission is missing, and raise PermissionDenied."""
        requested = list(sessions)
        entries.record_refusal(
            by=operator(request),
            permission=self._codename(name),
            session=requested[0] if len(requested) == 1 else None,
        )
        raise PermissionDenied

    def _codename(self, name: str) -> str:
        if name == "view":
            return self.view_codename
        is_general = name in ("add", "change", "delete")
        return get_permission_codename(name, self.opts) if is_general else name

    def check_list(self, request: HttpRequest) -> None:
        """Raise PermissionDenied if the operator may not send this request to the list.

        Raises BadRequest if a selected row has no possible primary key.
        """
        self.require(request, "view")
        if "_save" in request.POST:
            self.refuse(request, "change")
        # Django silently ignores an action that the operator may not use: record the refusal.
        chosen = set(request.POST.getlist("action")) - {""}
        for action in chosen - self.get_actions(request).keys():
            self.refuse(request, self.permission_for_action(action))
        for pk in request.POST.getlist(ACTION_CHECKBOX_NAME):
            if number_of(pk) is None:
                raise BadRequest("A selected row has no possible primary key.")

    def permission_for_action(self, name: str) -> str:
        """Return the permission that an action of the list requires."""
        known = getattr(self, name) if name in (self.actions or ()) else None
        allowed: tuple[str, ...] = getattr(known, "allowed_permissions", ("delete",))
        return allowed[0]

    def lookup_allowed(self, lookup: str, value: Any, request: Any = None) -> bool:
        """Allow a condition on a column only if a filter of the list declares it.

        Any other could test a text that the operator may not read, or read a whole table.
        """
        if not super().lookup_allowed(lookup, value, request):
            return False
        column = lookup.split(LOOKUP_SEP)[0]
        try:
            self.opts.get_field(self.opts.pk.name if column == "pk" else column)
        except FieldDoesNotExist:
            return True  # the parameter of a filter
        return any(_declares(one, lookup) for one in self.get_list_filter(request))

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[KeysetChangeList]:
        return KeysetChangeList

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        self.check_list(request)
        given = {"title": capfirst(self.opts.verbose_name_plural), **(extra_context or {})}
        return super().changelist_view(request, self._with_sections(request, given))

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        self.require(request, "view")
        if request.method == "POST":
            self.require(request, "change")
        self.find(request, object_id)
        context = self._with_sections(request, extra_context)
        return super().change_view(request, object_id, form_url, context)

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: Any = None
    ) -> HttpResponse:
        self.require(request, "view")
        self.find(request, object_id)
        return super().history_view(request, object_id, self._with_sections(request, extra_context))

    def _with_sections(self, request: HttpRequest, extra_context: Any) -> dict[str, Any]:
        """Return the context for a page of Django's, which has the rest."""
        links = sections.section_links(self.admin_site, request, self.section)
        return {"sections": links, **(extra_context or {})}

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        self.refuse(request, "add")

    def delete_view(
        self, request: HttpRequest, object_id: str, extra_context: Any = None
    ) -> HttpResponse:
        self.refuse(request, "delete")

    def url_of(self, page: str, *args: object) -> str:
        """Return the URL of a page on this site: a project can have several admin sites."""
        return reverse(f"admin:chatmemory_{page}", args=args, current_app=self.admin_site.name)

    def find(self, request: HttpRequest, object_id: str) -> Any:
        """Return the row that an address names. Raises Http404 if the operator may not view it."""
        found = self.get_object(request, unquote(object_id))
        if found is None or not self.permits(request, "view", obj=found):
            raise Http404
        return found


def _with_policy(view: Callable[..., HttpResponseBase]) -> Callable[..., HttpResponseBase]:
    policed = with_policy(view)

    @wraps(view)
    def inner(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        return (policed if _needs_policy() else view)(request, *args, **kwargs)

    return inner


def _needs_policy() -> bool:
    """Return whether our pages of the admin send a Content-Security-Policy.

    Not if the project has a middleware for it, which would keep ours, nor if the project or a theme
    replaces Django's base templates, which then can have inline code.
    """
    has_policy = any("csp" in name.lower() for name in django_settings.MIDDLEWARE)
    return not has_policy and has_templates_of_django("base", "base_site")


def has_templates_of_django(*names: str) -> bool:
    """Return whether neither the project nor a theme replaces these templates of the admin."""
    folder = apps.get_app_config("admin").path
    found: list[Any] = [get_template(f"admin/{name}.html") for name in names]
    return all(str(template.origin).startswith(folder) for template in found)


def _declares(declared: Any, lookup: str) -> bool:
    """Return whether an entry of `list_filter` is about the column of a lookup."""
    if (name := getattr(declared, "parameter_name", None)) is not None:
        return bool(lookup == name)
    field = declared[0] if isinstance(declared, list | tuple) else declared
    is_field = isinstance(field, str)
    return is_field and (lookup == field or lookup.startswith(f"{field}{LOOKUP_SEP}"))


def operator(request: HttpRequest) -> Actor:
    """Return the operator who sent the request. Raises PermissionDenied."""
    if not isinstance(request.user, get_user_model()):
        raise PermissionDenied
    return Actor.operator(request.user)
