"""Checks of the settings of this app."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from django.apps import AppConfig
from django.core import checks
from django.utils.module_loading import import_string

from chatmemory.checks.signatures import accepts
from chatmemory.checks.values import is_dictionary
from chatmemory.search.analysis import has_stems
from chatmemory.search.conf import settings

REACHES = ("session", "scope")
"""The values of RECALL_REACH."""


@checks.register
def check_search_settings(
    app_configs: Sequence[AppConfig] | None, **_: Any
) -> list[checks.CheckMessage]:
    """Check the settings of `chatmemory.search`."""
    return [*_check_values(), *_check_language()] if is_dictionary() else []


def _check_values() -> Iterator[checks.CheckMessage]:
    tokens: object = settings.RECALL_TOKENS
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 0:
        yield _error("CHATMEMORY['RECALL_TOKENS'] must be an integer of 0 or more.")
    if settings.RECALL_REACH not in REACHES:
        yield _error(f"CHATMEMORY['RECALL_REACH'] must be one of {', '.join(REACHES)}.")
    limit: object = settings.SEARCHES_PER_MINUTE
    is_number = isinstance(limit, int) and not isinstance(limit, bool) and limit > 0
    if limit is not None and not is_number and not _is_function(limit):
        yield _error(
            "CHATMEMORY['SEARCHES_PER_MINUTE'] must be an integer of 1 or more, None, or the "
            "dotted path of a function."
        )


def _error(message: str) -> checks.CheckMessage:
    return checks.Error(message, id="chatmemory.E024")


def _is_function(path: object) -> bool:
    try:
        return isinstance(path, str) and accepts(import_string(path), 1)
    except (ImportError, TypeError, ValueError):  # the last two: a path that begins with a dot
        return False


def _check_language() -> Iterator[checks.CheckMessage]:
    language: object = settings.SEARCH_LANGUAGE
    if not isinstance(language, str):
        yield _error("CHATMEMORY['SEARCH_LANGUAGE'] must be a string.")
    elif language and not has_stems(language):
        yield checks.Warning(
            f"CHATMEMORY['SEARCH_LANGUAGE']: there are no rules for {language!r}, so a search uses "
            "the first five characters of each word.",
            hint='Install "django-chatmemory[search]", and use a name that Snowball has, or "".',
            id="chatmemory.W046",
        )
