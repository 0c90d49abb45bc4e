"""Checks of the keys and values of `CHATMEMORY`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

from django.apps import AppConfig
from django.conf import settings as django_settings
from django.core import checks
from django.utils.functional import Promise
from django.utils.module_loading import import_string

from chatmemory.access.embeds import address_of
from chatmemory.checks.responders import check_responder, import_hint
from chatmemory.checks.signatures import accepts
from chatmemory.conf import Duration, OptionalDuration, Setting, Settings, settings
from chatmemory.services.retention.rules import MAX_AGE_SECONDS, retention_rules
from chatmemory.services.turns.admission import BUSY_POLICIES

NUMBERS = {
    "WINDOW_TOKENS": (1, True),
    "WINDOW_MESSAGES": (1, True),
    "MAX_MESSAGE_CHARS": (1, False),
    "MAX_REPLY_CHARS": (1, False),
    "MAX_MESSAGE_BYTES": (1, False),
    "MEDIA_TOKENS": (0, False),
    "DB_THREADS": (0, False),
    "SENDS_PER_MINUTE": (1, True),
    "CONNECTIONS_PER_USER": (1, True),
    "READS_PER_MINUTE": (1, True),
    "WRITES_PER_MINUTE": (1, True),
    "TOKENS_PER_DAY": (1, True),
    "MAX_SESSIONS_PER_USER": (1, True),
    "TURNS_PER_USER": (1, True),
    "WAITS_PER_USER": (0, True),
    "WAITS_PER_PROCESS": (0, True),
    "UNDO_DAYS": (0, False),
    "QUEUE_DEPTH": (1, False),
    "VISITOR_DAYS": (1, False),
    "VISITOR_MAX_DAYS": (1, False),
    "EMBED_DAYS": (1, False),
    "EMBED_VISITORS_PER_MINUTE": (1, True),
    "VISITORS_PER_HOUR": (1, True),
    "VISITORS_PER_MINUTE": (1, True),
    "VISITOR_SENDS_PER_MINUTE": (1, True),
    "VISITOR_TOKENS_PER_DAY": (1, True),
}
"""For each integer setting, its minimum and whether None is allowed."""

FLAGS = ("WINDOW_JOIN", "WINDOW_SYSTEM_FIRST", "ALLOW_ANONYMOUS")
"""Settings that are True or False."""

MAXIMA = {
    "UNDO_DAYS": MAX_AGE_SECONDS // (24 * 60 * 60),
    "VISITOR_DAYS": 400,
    "VISITOR_MAX_DAYS": 400,
    "EMBED_DAYS": 400,
}
"""The maximum of a setting from which dates are computed."""

SELF_SERVICES = ("export", "erase")
"""The values of SELF_SERVICE."""

MAY_BE_ZERO = ("DRAIN",)
"""Durations that may be 0."""

FUNCTIONS = {
    "TOKEN_COUNTER": ("approximate", 1),
    "SOCKET_AUTH": (None, 1),
    "VALID_LOGINS": (None, 1),
    "GATE": (None, 1),
    "IMPERSONATOR": (None, 1),
    "REACH": (None, 1),
    "TITLE": (None, 2),
    "INSTRUCTIONS_FOR": (None, 1),
    "NEW_SESSION": (None, 2),
    "BEFORE_SEND": (None, 2),
}
"""Settings that are a dotted path to a function: the value that means no function, and the number
of its arguments."""

PER_PERSON = (
    "SENDS_PER_MINUTE",
    "READS_PER_MINUTE",
    "WRITES_PER_MINUTE",
    "TOKENS_PER_DAY",
    "MAX_SESSIONS_PER_USER",
)
"""Limits that may be a dotted path to a function of the actor."""

MIN_HEALTH_TOKEN_CHARS = 32

MAX_SUGGESTION_CHARS = 200

MIN_LEASE_SECONDS = 5.0
"""A busy process may pause for this long."""


@checks.register
def check_settings(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[checks.CheckMessage]:
    """Check the keys and values of `CHATMEMORY`."""
    if not is_dictionary():
        return [checks.Error("CHATMEMORY must be a dictionary.", id="chatmemory.E001")]
    return [
        *_check_names(),
        *_check_numbers(),
        *_check_flags(),
        *_check_durations(),
        *_check_functions(),
        *_check_instructions(),
        *_check_audit_keys(),
        *_check_health_token(),
        *_check_erasure_list(),
        *_check_busy_policy(),
        *_check_self_service(),
        *_check_prepared_statements(),
        *_check_retention(),
        *_check_transcripts(),
        *_check_origins(),
        *_check_suggestions(),
        *_check_metadata_filters(),
        *check_responder(),
    ]


@checks.register
def check_times(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[checks.CheckMessage]:
    """Check the durations against each other."""
    if not is_dictionary() or not all(map(is_duration, ("LEASE", "TURN_TIMEOUT", "DRAIN"))):
        return []
    lease, timeout, drain = settings.LEASE, settings.TURN_TIMEOUT, settings.DRAIN
    return [
        checks.Warning(f"CHATMEMORY[{name!r}] is {what}.", hint=hint, id="chatmemory.W005")
        for name, what, is_wrong, hint in (
            (
                "LEASE",
                f"{lease:g} s",
                lease < MIN_LEASE_SECONDS,
                f"A process that pauses for longer loses its runs. Use {MIN_LEASE_SECONDS:g} or "
                "more.",
            ),
            (
                "LEASE",
                f"longer than TURN_TIMEOUT, {timeout:g} s",
                lease > timeout,
                "A dead process is detected only when its lease expires. Use a shorter LEASE.",
            ),
            (
                "DRAIN",
                f"longer than TURN_TIMEOUT, {timeout:g} s",
                drain > timeout,
                "No turn runs that long, and process managers may kill the process first.",
            ),
        )
        if is_wrong
    ]


def is_dictionary() -> bool:
    """Whether CHATMEMORY is a dictionary; if not, only `check_settings` reports it."""
    return isinstance(getattr(django_settings, "CHATMEMORY", {}), dict)


def is_duration(name: str) -> bool:
    """Whether the value of this setting is a valid duration."""
    may_be_none = isinstance(vars(Settings)[name], OptionalDuration)
    try:
        value = getattr(settings, name)
        if value is None or value == 0:
            return may_be_none if value is None else name in MAY_BE_ZERO
        return bool(0 < value <= MAX_AGE_SECONDS)
    except (TypeError, ValueError):
        return False


def _known_names() -> list[str]:
    return [name for name, value in vars(Settings).items() if isinstance(value, Setting)]


def _check_names() -> list[checks.CheckMessage]:
    """Warn of unknown settings, with the nearest known name."""
    known = _known_names()
    found: list[checks.CheckMessage] = []
    for name in getattr(django_settings, "CHATMEMORY", {}):
        if name in known:
            continue
        similar = get_close_matches(str(name).upper(), known, n=1)
        hint = f"Did you mean {similar[0]}?" if similar else f"The settings are {', '.join(known)}."
        message = f"Unknown setting CHATMEMORY[{name!r}]."
        found.append(checks.Warning(message, hint=hint, id="chatmemory.W001"))
    return found


def _check_numbers() -> list[checks.CheckMessage]:
    """Check that integer settings are within their limits."""
    found: list[checks.CheckMessage] = []
    for name, (minimum, may_be_none) in NUMBERS.items():
        value = getattr(settings, name)
        if (value is None and may_be_none) or (name in PER_PERSON and isinstance(value, str)):
            continue
        maximum = MAXIMA.get(name, math.inf)
        is_integer = isinstance(value, int) and not isinstance(value, bool)
        if is_integer and minimum <= value <= maximum:
            continue
        span = f"from {minimum} to {maximum:,}" if name in MAXIMA else f"of {minimum} or more"
        what = f"an integer {span}" + (" or None" if may_be_none else "")
        message = f"CHATMEMORY[{name!r}] must be {what}."
        found.append(checks.Error(message, id="chatmemory.E002"))
    return found


def _check_flags() -> list[checks.CheckMessage]:
    return [
        checks.Error(f"CHATMEMORY[{name!r}] must be True or False.", id="chatmemory.E002")
        for name in FLAGS
        if getattr(settings, name) not in (True, False)
    ]


def _check_durations() -> list[checks.CheckMessage]:
    """Check that durations are numbers of seconds or timedeltas."""
    found: list[checks.CheckMessage] = []
    for name in _known_names():
        is_setting = isinstance(vars(Settings)[name], Duration | OptionalDuration)
        if not is_setting or is_duration(name):
            continue
        span = "of 0 or more" if name in MAY_BE_ZERO else "above 0"
        value = django_settings.CHATMEMORY[name]
        message = (
            f"CHATMEMORY[{name!r}] must be a number of seconds {span}, at most 100 years, or a "
            "timedelta."
        )
        hint = f"{value!r} is a string; convert it." if isinstance(value, str) else None
        found.append(checks.Error(message, hint=hint, id="chatmemory.E003"))
    return found


def _check_functions() -> list[checks.CheckMessage]:
    """Check that the functions named by dotted paths exist, and accept their arguments."""
    found: list[checks.CheckMessage] = []
    functions = {**FUNCTIONS, **dict.fromkeys(PER_PERSON, (None, 1))}
    for name, (default, arguments) in functions.items():
        path = getattr(settings, name)
        if path == default or (name in PER_PERSON and not isinstance(path, str)):
            continue
        if not _is_function(path):
            problem = "cannot be imported or is not callable"
            hint = _function_hint(path)
        elif not accepts(import_string(path), arguments):
            problem = f"does not accept {arguments} argument{'s' if arguments > 1 else ''}"
            hint = "docs/reference/settings.md describes how it is called."
        else:
            continue
        message = f"CHATMEMORY[{name!r}]: {path!r} {problem}."
        found.append(checks.Error(message, hint=hint, id="chatmemory.E004"))
    return found


def _check_instructions() -> list[checks.CheckMessage]:
    """Check that INSTRUCTIONS is a text."""
    text: object = settings.INSTRUCTIONS
    if isinstance(text, str):
        return []
    message = "CHATMEMORY['INSTRUCTIONS'] must be a string."
    hint = "INSTRUCTIONS_FOR names a function that selects the text for each session."
    return [checks.Error(message, hint=hint, id="chatmemory.E002")]


def _check_audit_keys() -> list[checks.CheckMessage]:
    """Check that the audit keys are strings."""
    key: object = settings.AUDIT_KEY
    fallbacks: object = settings.AUDIT_KEY_FALLBACKS
    found: list[checks.CheckMessage] = []
    if not isinstance(key, str):
        message = "CHATMEMORY['AUDIT_KEY'] must be a string."
        found.append(checks.Error(message, id="chatmemory.E002"))
    if not isinstance(fallbacks, list | tuple) or not all(
        isinstance(former, str) and former for former in fallbacks
    ):
        message = "CHATMEMORY['AUDIT_KEY_FALLBACKS'] must be a list of non-empty strings."
        found.append(checks.Error(message, id="chatmemory.E002"))
    return found


def _check_health_token() -> list[checks.CheckMessage]:
    """Check that the monitors' secret cannot be guessed."""
    token: object = settings.HEALTH_TOKEN
    if token == "" or (isinstance(token, str) and len(token) >= MIN_HEALTH_TOKEN_CHARS):
        return []
    message = (
        f"CHATMEMORY['HEALTH_TOKEN'] must be a string of {MIN_HEALTH_TOKEN_CHARS} or more "
        "characters, or empty."
    )
    return [checks.Error(message, id="chatmemory.E002")]


def _check_erasure_list() -> list[checks.CheckMessage]:
    """Check that the erasure list is an absolute path, or a dotted path to a callable."""
    given: object = settings.ERASURE_LIST
    is_file = isinstance(given, str | Path) and Path(given).is_absolute()
    if given is None or is_file or _is_function(given):
        return []
    message = (
        f"CHATMEMORY['ERASURE_LIST']: {str(given)!r} is neither an absolute path nor the dotted "
        "path of a function."
    )
    return [checks.Error(message, id="chatmemory.E004")]


def _function_hint(path: object) -> str:
    """Return how to correct the path of a function that cannot be imported or called."""
    if isinstance(path, str) and not path.startswith("."):
        try:
            found = import_string(path)
        except ImportError as error:
            return import_hint(path, error, what="the function")
        if isinstance(found, ModuleType):
            return f"{path} is a module; name the function in it."
    return "Use the dotted path of a function."


def _is_function(path: object) -> bool:
    try:
        return isinstance(path, str) and callable(import_string(path))
    except (ImportError, TypeError, ValueError):  # the last two: a path that begins with a dot
        return False


def _check_busy_policy() -> list[checks.CheckMessage]:
    """Check the value of BUSY_POLICY."""
    if settings.BUSY_POLICY in BUSY_POLICIES:
        return []
    message = f"CHATMEMORY['BUSY_POLICY'] must be one of {', '.join(BUSY_POLICIES)}."
    return [checks.Error(message, id="chatmemory.E011")]


def _check_self_service() -> list[checks.CheckMessage]:
    """Check the values of SELF_SERVICE."""
    given = settings.SELF_SERVICE
    is_collection = isinstance(given, list | tuple | set | frozenset)
    if is_collection and all(action in SELF_SERVICES for action in given):
        return []
    message = f"CHATMEMORY['SELF_SERVICE'] must be a list with any of {', '.join(SELF_SERVICES)}."
    return [checks.Error(message, id="chatmemory.E016")]


def _check_prepared_statements() -> list[checks.CheckMessage]:
    """Check the value of PREPARED_STATEMENTS."""
    if settings.PREPARED_STATEMENTS in (True, False, None):
        return []
    message = "CHATMEMORY['PREPARED_STATEMENTS'] must be True, False or None."
    return [checks.Error(message, id="chatmemory.E002")]


def _check_retention() -> list[checks.CheckMessage]:
    """Check the rules of RETENTION, and the value of USER_DELETED."""
    found: list[checks.CheckMessage] = []
    try:
        retention_rules()
    except ValueError as error:
        found.append(checks.Error(f"CHATMEMORY: {error}.", id="chatmemory.E009"))
    if settings.USER_DELETED not in ("purge", "erase", "keep"):
        message = "CHATMEMORY['USER_DELETED'] must be purge, erase or keep."
        found.append(checks.Error(message, id="chatmemory.E010"))
    return found


def _check_transcripts() -> list[checks.CheckMessage]:
    """Check the value of TRANSCRIPTS."""
    if settings.TRANSCRIPTS in ("normal", "masked", "off"):
        return []
    message = "CHATMEMORY['TRANSCRIPTS'] must be normal, masked or off."
    return [checks.Error(message, id="chatmemory.E018")]


def _check_origins() -> list[checks.CheckMessage]:
    """Check that each origin of a setting is a scheme, host and optional port."""
    found: list[checks.CheckMessage] = []
    for name, may_be_none in (
        ("ALLOWED_ORIGINS", True),
        ("IMAGE_ORIGINS", False),
        ("ASSET_ORIGINS", False),
    ):
        given: object = getattr(settings, name)
        if given is None and may_be_none:
            continue
        origins = given if isinstance(given, list | tuple) else [given]
        wrong = [origin for origin in origins if not is_origin(origin)]
        if not wrong and origins is given:
            continue
        message = f"CHATMEMORY[{name!r}] must be a list of scheme://host[:port]."
        hint = "Invalid: " + ", ".join(map(repr, wrong)) + "." if origins is given else None
        found.append(checks.Error(message, hint=hint, id="chatmemory.E007"))
    return found


def is_origin(origin: object) -> bool:
    """Return whether this is a scheme, host and optional port."""
    return isinstance(origin, str) and address_of(origin) is not None


def _check_suggestions() -> list[checks.CheckMessage]:
    """Check that the suggestions are texts that fit on buttons."""
    given: object = settings.SUGGESTIONS
    if isinstance(given, list | tuple) and all(map(_is_suggestion, given)):
        return []
    message = (
        "CHATMEMORY['SUGGESTIONS'] must be a list of texts with 1 to "
        f"{MAX_SUGGESTION_CHARS} characters."
    )
    return [checks.Error(message, id="chatmemory.E021")]


def _check_metadata_filters() -> list[checks.CheckMessage]:
    """Check that the keys cannot be taken for an index, or for two keys in a query."""
    given: object = settings.METADATA_FILTERS
    if isinstance(given, list | tuple) and all(
        isinstance(key, str) and key.isascii() and key.isidentifier() for key in given
    ):
        return []
    message = (
        "CHATMEMORY['METADATA_FILTERS'] must be a list of keys of ASCII letters, digits and _, "
        "which begin with no digit."
    )
    return [checks.Error(message, id="chatmemory.E002")]


def _is_suggestion(given: object) -> bool:
    # A lazy translation is no str; checks run before a language is active.
    is_text = isinstance(given, str | Promise)
    return is_text and 1 <= len(str(given).strip()) <= MAX_SUGGESTION_CHARS
