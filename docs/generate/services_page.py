"""Generates docs/services.md from the signatures and docstrings of the services."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import django
from django.conf import settings

if not settings.configured:  # run as a script
    apps = ["django.contrib.contenttypes", "django.contrib.auth", "chatmemory"]
    settings.configure(INSTALLED_APPS=apps)
    django.setup()

from chatmemory import services  # its models need the settings

INTRO = """# The services

The functions that a host may call, in `chatmemory.services`. Everything else in that package is
internal and can change without notice. `python docs/generate/services_page.py` generates this page
from `chatmemory/services`.

Each function has an async twin: `append_messages` is awaited as `aappend_messages`, with the same
arguments, result and errors. The exceptions are marked *no twin*.

All arguments are keyword-only unless the signature shows otherwise. `by` is the actor for whom the
call is made: `Actor.user(user)`, `Actor.visitor(token)` for a person without an account,
`Actor.operator(user)`, `Actor.command(command, person)` or `Actor.server(name)`. Users and visitors
reach their own scope, which is used if `scope` is None. The others must name the scope. The errors
are in `chatmemory.errors`.
"""

SUBJECTS: dict[str, tuple[str, ...]] = {
    "Actors": ("user_scope",),
    "Sessions": (
        "open_session",
        "get_session",
        "get_head",
        "sessions_of",
        "update_session",
        "tag_session",
        "untag_session",
        "add_note",
        "delete_note",
    ),
    "Messages": (
        "append_messages",
        "read_page",
        "read_missed",
        "read_history",
        "read_superseded",
    ),
    "Turns": (
        "admit_turn",
        "stop_turn",
        "stop_running_turn",
        "list_turns",
        "get_turn",
        "list_versions",
        "read_unstored",
        "set_feedback",
        "count_stuck_turns",
    ),
    "Removal and restore": (
        "preview_trim",
        "trim_session",
        "preview_removal",
        "clear_session",
        "purge_session",
        "list_removed",
        "preview_restore",
        "restore_session",
    ),
    "Redaction": ("find_text", "redact_message", "redact_turn"),
    "Holds and archive": (
        "hold_session",
        "release_session",
        "archive_session",
        "unarchive_session",
    ),
    "Retention": ("expire_sessions", "vacuum", "deleting_users"),
    "Erasure": (
        "count_stored_data",
        "preview_erasure",
        "erase_person",
        "find_erasures",
        "find_erasures_of_key",
        "replay_erasures",
    ),
    "Daily numbers": ("roll_up_numbers",),
    "Audit": ("audit_state", "seal_audit", "verify_audit"),
    "Integrity": ("check_integrity", "recover_restored_database"),
    "Export": ("begin_export", "begin_export_of_all"),
    "Import": ("is_imported", "begin_import", "import_rows", "finish_import", "discard_import"),
    "Tickets": ("issue_ticket", "use_ticket"),
    "Visitors": ("create_visitor", "authenticate_visitor", "offer_adoption", "adopt_visitor"),
}
"""The functions of each section, in order."""

MAX_LINE_CHARS = 88
MAX_TEXT_CHARS = 100


class _Annotation(str):
    """An annotation that a signature shows without quotes."""

    __slots__ = ()

    __repr__ = str.__str__


def page() -> str:
    """Return the page as Markdown: functions by subject, then the types that they use."""
    sections = [INTRO]
    for subject, names in SUBJECTS.items():
        sections.append(f"## {subject}\n")
        sections += [_function(name) for name in names]
    sections.append("## Types\n")
    sections += [_type(name) for name in sorted(exported_types())]
    return "\n".join(sections)


def exported_functions() -> dict[str, Callable[..., Any]]:
    """Return the exported functions by name, without their async twins."""
    found = {name: getattr(services, name) for name in services.__all__}
    return {
        name: function
        for name, function in found.items()
        if inspect.isfunction(function) and not inspect.iscoroutinefunction(function)
    }


def exported_types() -> dict[str, type]:
    """Return the exported classes by name."""
    found = {name: getattr(services, name) for name in services.__all__}
    return {name: kind for name, kind in found.items() if inspect.isclass(kind)}


def _function(name: str) -> str:
    function = exported_functions()[name]
    mark = "" if f"a{name}" in services.__all__ else " (no twin)"
    code = f"```python\n{_signature(name, function)}\n```"
    return f"### `{name}`{mark}\n\n{code}\n\n{_first_paragraph(function)}\n{_errors(function)}"


def _signature(name: str, function: Callable[..., Any]) -> str:
    """Return the signature in one line; if it is too long, with one parameter in each line."""
    signature = inspect.signature(function)
    parameters = [
        parameter.replace(annotation=_Annotation(parameter.annotation))
        for parameter in signature.parameters.values()
    ]
    returned = _Annotation(signature.return_annotation)
    line = f"{name}{signature.replace(parameters=parameters, return_annotation=returned)}"
    if len(line) <= MAX_LINE_CHARS:
        return line
    lines = [str(parameter) for parameter in parameters]
    kinds = [parameter.kind for parameter in parameters]
    if inspect.Parameter.KEYWORD_ONLY in kinds:
        lines.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    indented = "".join(f"    {line},\n" for line in lines)
    return f"{name}(\n{indented}) -> {returned}"


def _type(name: str) -> str:
    kind = exported_types()[name]
    lines = [f"### `{name}`\n", _first_paragraph(kind)]
    if is_dataclass(kind):
        columns = [f"`{field.name}: {field.type}`" for field in fields(kind)]
        lines.append(f"\nFields: {', '.join(columns)}.")
    elif annotations := kind.__annotations__:
        columns = [f"`{key}: {_annotation(value)}`" for key, value in annotations.items()]
        lines.append(f"\nKeys: {', '.join(columns)}.")
    return "\n".join(lines) + "\n"


def _annotation(value: Any) -> str:
    return str(getattr(value, "__forward_arg__", value))


def _errors(function: Callable[..., Any]) -> str:
    """Return the sentence of the docstring that names the errors, as a paragraph."""
    text = " ".join(inspect.cleandoc(function.__doc__ or "").partition("\n\n")[2].split())
    found = re.search(r"Raises [^.]+\.", text)
    return "" if found is None else f"\n{textwrap.fill(found[0], MAX_TEXT_CHARS)}\n"


def _first_paragraph(documented: Any) -> str:
    return inspect.cleandoc(documented.__doc__ or "").partition("\n\n")[0]


if __name__ == "__main__":
    (Path(__file__).resolve().parent.parent / "services.md").write_text(page())
