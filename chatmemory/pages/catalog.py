"""The texts of the pages' JavaScript, in languages other than its own English."""

from __future__ import annotations

import hashlib
import json

from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import NoReverseMatch, reverse
from django.utils import translation
from django.utils.decorators import method_decorator
from django.utils.translation.trans_real import DjangoTranslation
from django.views.decorators.cache import cache_control
from django.views.i18n import JavaScriptCatalog

MAX_AGE_SECONDS = 86_400


@method_decorator(login_not_required, name="dispatch")  # the widget of a visitor needs it
@method_decorator(transaction.non_atomic_requests, name="dispatch")
@method_decorator(cache_control(public=True, max_age=MAX_AGE_SECONDS), name="dispatch")
class Catalog(JavaScriptCatalog):
    """The texts in the language that the address names, as a script that defines `gettext`."""

    packages = ["chatmemory"]  # noqa: RUF012  # Django's own attribute

    def get(self, request: HttpRequest, /, language: str) -> HttpResponse:
        if not translation.check_for_language(language):
            raise Http404
        with translation.override(language):
            response = super().get(request)
        response.headers["Content-Language"] = language
        return response


def catalog_url() -> str | None:
    """Return the address of the texts in the active language; None if it has no texts.

    The address changes with the texts, so that browsers may cache them.
    """
    language = settings.USE_I18N and translation.get_language()
    if not language or not (version := _catalog_version(language)):
        return None
    try:
        return f"{reverse('chatmemory:catalog', args=[language])}?{version}"
    except NoReverseMatch:
        return None  # the host has not included the pages


def _catalog_version(language: str) -> str:
    """Return a digest of the texts in a language; empty if it has no texts."""
    catalog = Catalog()
    paths = catalog.get_paths(catalog.packages)
    catalog.translation = DjangoTranslation(language, domain=catalog.domain, localedirs=paths)
    texts = catalog.get_catalog()
    if not texts:
        return ""
    return hashlib.sha256(json.dumps(texts, sort_keys=True).encode()).hexdigest()[:12]
