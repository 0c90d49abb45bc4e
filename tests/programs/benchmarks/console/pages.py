"""Find all pages of the admin of chatmemory: routes, filters, searches and further links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import unescape
from typing import Any
from urllib.parse import parse_qsl, urlencode

from django.contrib import admin
from django.contrib.admin import ModelAdmin
from django.test import Client
from django.urls import NoReverseMatch, URLPattern, reverse

from chatmemory.admin.choices import TextFilter
from chatmemory.admin.reports.page import ReportPage
from chatmemory.models import installed_models
from tests.programs.benchmarks.console.examples import ABSENT, PREVIEW, Examples

APP = "chatmemory"
_REFUSED = ("add", "delete", "cancel")
"""Django's pages that no operator may use, and one that only changes."""
_LINK = re.compile(r'href="(\?[^"]+)"')


@dataclass(frozen=True, slots=True)
class Target:
    """A page to request; without a URL if this package has no example for it."""

    name: str
    url: str | None
    data: dict[str, str | int] | None = None
    """A form to send, which must change nothing."""


def model_admins() -> list[Any]:
    """Return the registered ModelAdmins of the app."""
    return [
        model_admin
        for model, model_admin in admin.site._registry.items()
        if model in installed_models()
    ]


def find_targets(client: Client, examples: Examples) -> Iterator[Target]:
    """Yield the pages that the operator of `client` can request, each once."""
    seen = set()
    for target in _all_targets(client, examples):
        request = (target.url, target.data is None)
        if target.url is None or request not in seen:
            seen.add(request)
            yield target


def _all_targets(client: Client, examples: Examples) -> Iterator[Target]:
    """Yield the pages. Two ModelAdmins can have the same one, such as the list of jobs."""
    for model_admin in model_admins():
        yield from _routes(model_admin, examples)
    for model_admin in model_admins():
        yield from _lists(model_admin, client, examples)


def _routes(model_admin: ModelAdmin, examples: Examples) -> Iterator[Target]:
    refused = (*_REFUSED, "change", "history") if isinstance(model_admin, ReportPage) else _REFUSED
    for pattern in model_admin.get_urls():
        name = (pattern.name or "").removeprefix(f"{APP}_")
        if name and name.rpartition("_")[2] not in refused:
            yield from _route(model_admin, pattern, name, examples)


def _route(
    model_admin: ModelAdmin, pattern: URLPattern, name: str, examples: Examples
) -> Iterator[Target]:
    parameters = pattern.pattern.converters
    rows = examples.arguments(name, model_admin.model) if parameters else {"": {}}
    for number, (special, known) in enumerate(rows.items()):
        arguments = {key: value for key, value in known.items() if key in parameters}
        try:
            address = reverse(f"admin:{APP}_{name}", kwargs=arguments)
        except NoReverseMatch:
            yield Target(f"{name}: no example of {', '.join(parameters)}", None)
            return
        queries = examples.queries(name) if number == 0 or "action" in known else {"": {}}
        for about, query in queries.items():
            label = " ".join(filter(None, (name, special, about)))
            data = PREVIEW if "preview" in about else None
            yield Target(label, f"{address}?{urlencode(query, doseq=True)}", data)


def _lists(model_admin: Any, client: Client, examples: Examples) -> Iterator[Target]:
    """Yield the filters, the searches and the other pages of a list."""
    opts = model_admin.opts
    name = f"{opts.app_label}_{opts.model_name}_changelist".removeprefix(f"{APP}_")
    address = reverse(f"admin:{APP}_{name}")
    response: Any = client.get(address)
    if response.status_code != 200:
        return
    request = response.wsgi_request
    seen = {""}
    for label, query in _filters(model_admin.get_changelist_instance(request), examples):
        if query is None:
            yield Target(f"{name} {label}: no example", None)
        elif query not in seen:
            seen.add(query)
            yield Target(f"{name} {label}", address + query)
    if model_admin.get_search_fields(request):
        for label, term in examples.terms().items():
            yield Target(f"{name} search: {label}", f"{address}?{urlencode({'q': term})}")
    for query in _further_links(response.content.decode(), seen):
        yield Target(f"{name} link {query}", address + query)


def _filters(changelist: Any, examples: Examples) -> Iterator[tuple[str, str | None]]:
    """Yield each choice of each filter, with its query."""
    for spec in changelist.filter_specs:
        if isinstance(spec, TextFilter):
            text = examples.text(spec.parameter_name)
            label = f"{spec.parameter_name}="
            yield f"{label}{text}", text and f"?{urlencode({spec.parameter_name: text})}"
            yield f"{label}{ABSENT}", f"?{urlencode({spec.parameter_name: ABSENT})}"
            continue
        for choice in spec.choices(changelist):
            query = str(choice["query_string"]).removeprefix("?")
            yield f"{query}", f"?{query}" if query else ""


def _further_links(html: str, seen: set[str]) -> Iterator[str]:
    """Yield the last link for each set of parameters that no filter has, such as the last page."""
    known = {_parameters(query) for query in seen}
    last = {_parameters(link): link for link in map(unescape, _LINK.findall(html))}
    yield from (link for parameters, link in last.items() if parameters not in known)


def _parameters(query: str) -> frozenset[str]:
    return frozenset(name for name, _ in parse_qsl(query.removeprefix("?")))
