"""Generates docs/reference/services.md from the signatures and docstrings of the services."""

from __future__ import annotations

import inspect
import re
import sys
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

The functions and types that a host needs, in `chatmemory.services`. Everything else in that package
is internal and can change without notice. `python docs/generate/services_page.py` generates this
page from `chatmemory/services`.

Functions that a view or consumer in an event loop calls while a person waits in a chat have an
async version too, which the headings name: `append_messages` is awaited as `aappend_messages`,
with the same arguments, result and errors. What is called once in a while has none: removal and
restore, the adoption of a visitor, and what operators, commands and jobs call. In an event loop
call it in a thread, such as `await database_sync_to_async(hold_session)(…)` with `channels.db`.

All arguments are keyword-only unless the signature shows otherwise. `by` is the actor for whom the
call is made. Users and visitors reach their own scope, which is used if `scope` is None. The others
must name the scope. The errors are in `chatmemory.errors`.

In the examples `user` is a user and `staff` is an operator.
"""

SUBJECTS: dict[str, tuple[str, ...]] = {
    "Actors": ("user_scope",),
    "Sessions": (
        "open_session",
        "list_sessions",
        "get_session",
        "sessions_of",
        "update_session",
    ),
    "Messages": ("append_messages", "read_page", "read_history"),
    "Turns": ("admit_turn", "stop_turn", "list_turns", "get_turn", "set_feedback"),
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
    "Holds and archive": (
        "hold_session",
        "release_session",
        "archive_session",
        "unarchive_session",
    ),
    "Tags and notes": ("tag_session", "untag_session", "add_note", "delete_note"),
    "Redaction": ("find_text", "redact_message", "redact_turn"),
    "Erasure": (
        "count_stored_data",
        "preview_erasure",
        "erase_person",
        "replay_erasures",
        "deleting_users",
    ),
    "Export": ("begin_export",),
    "Tickets": ("issue_ticket", "use_ticket"),
    "Visitors": ("create_visitor", "authenticate_visitor", "offer_adoption", "adopt_visitor"),
}
"""The functions of each section, in order."""

EXAMPLES = {
    "Actors": """\
`Actor.user(user)` and `Actor.visitor(token)`, a person without an account, reach their own
sessions. `Actor.operator(user)`, `Actor.command(command, person)` and `Actor.server(name)` name a
scope: that of a user, or `SERVER`, the scope of your own code.

```python
from chatmemory.services import SERVER, Actor, open_session, user_scope

own = open_session(session_key="order-4711", by=Actor.user(user))
seen = open_session(session_key="order-4711", by=Actor.operator(staff), scope=user_scope(user))
log = open_session(session_key="deliveries", by=Actor.server("shop"), scope=SERVER)
```
""",
    "Sessions": """\
```python
from chatmemory.services import Actor, list_sessions, open_session, update_session

by = Actor.user(user)
open_session(session_key="order-4711", by=by, title="Order 4711", metadata={"order": 4711})
update_session(session_key="order-4711", by=by, pinned=True)
page = list_sessions(by=by, pinned=True, limit=20)
titles = [session.title for session in page.sessions]
while page.next:
    page = list_sessions(by=by, pinned=True, limit=20, cursor=page.next)
    titles += [session.title for session in page.sessions]
```
""",
    "Messages": """\
```python
from chatmemory.services import Actor, append_messages, read_page

order = {"session_key": "order-4711", "by": Actor.user(user)}
append_messages(
    **order,
    messages=[{"role": "assistant", "content": "Your order was shipped."}],
    client_id="shipped-4711",  # a repeated call stores nothing
    create=True,
)
newest = read_page(**order, limit=20)
texts = [row.text for row in newest.rows]
older = read_page(**order, before=newest.rows[0].seq, limit=20)
```
""",
    "Turns": """\
A turn waits until a process that runs turns claims it.

```python
from django.http import JsonResponse

from chatmemory.services import Actor, aadmit_turn, aget_turn, astop_turn


async def ask(request):
    admitted = await aadmit_turn(
        session_key="order-4711",
        client_id=request.POST["id"],  # a repeated request admits no second turn
        content=request.POST["text"],
        by=Actor.user(await request.auser()),
        create=True,
    )
    return JsonResponse({"turn": admitted.turn, "status": admitted.status})


async def stop(request, turn):
    order = {"session_key": "order-4711", "by": Actor.user(await request.auser())}
    await astop_turn(**order, turn=turn)
    return JsonResponse({"status": (await aget_turn(**order, turn=turn)).status})
```
""",
    "Removal and restore": """\
```python
from chatmemory.services import Actor, get_session, preview_trim, restore_session, trim_session

order = {"session_key": "order-4711", "by": Actor.user(user)}
preview = preview_trim(get_session(**order), keep_last=20)
if preview.messages:
    entry = trim_session(**order, keep_last=20, reason="too long")
    restore_session(entry_pk=entry.pk, by=order["by"], reason="undo")
```
""",
    "Holds and archive": """\
```python
from chatmemory.errors import Held
from chatmemory.services import Actor, clear_session, hold_session, release_session, user_scope

order = {"session_key": "order-4711", "by": Actor.operator(staff), "scope": user_scope(user)}
hold_session(**order, reason="a dispute")
try:
    clear_session(**order, reason="cleanup")
except Held:
    release_session(**order, reason="settled")
```
""",
    "Tags and notes": """\
Retention rules select sessions by tag. Operators read notes; users and models never see them.

```python
from chatmemory.services import Actor, add_note, tag_session, user_scope

order = {"session_key": "order-4711", "by": Actor.operator(staff), "scope": user_scope(user)}
tag_session(**order, tag="contract", reason="the order was signed")
add_note(**order, text="Called back on 4 May.")
```
""",
    "Redaction": """\
```python
from chatmemory.services import Actor, find_text, redact_message, sessions_of, user_scope

ann = {"by": Actor.operator(staff), "scope": user_scope(user)}
for found in find_text(sessions=sessions_of(**ann), text="4111 1111"):
    if found.field == "message" and not found.obstacle:
        redact_message(session_key=found.session_key, seq=found.seq, reason="a card number", **ann)
```
""",
    "Erasure": """\
```python
from chatmemory.services import Actor, erase_person, preview_erasure, user_scope

ann = {"by": Actor.operator(staff), "scope": user_scope(user)}
messages = preview_erasure(**ann).messages
erased = erase_person(**ann, reason="asked for it on 4 May")
kept = erased.held  # sessions on hold: erase again after their release
```
""",
    "Export": """\
[An async view](../howto/transfer.md) streams an export. Here it is written to `path`, a
`pathlib.Path`. `formats.import_lines` imports it, as `chatmemory_import` does.

```python
from chatmemory import formats
from chatmemory.services import Actor, begin_export

export = begin_export(format="jsonl", by=Actor.user(user), reason="own data")
with path.open("w", encoding="utf-8", newline="") as file:
    file.writelines(formats.write_export(export))
```
""",
    "Tickets": """\
```python
from django.http import JsonResponse

from chatmemory.services import Actor, aissue_ticket, ause_ticket


async def ticket(request):
    by = Actor.user(await request.auser())
    return JsonResponse({"ticket": await aissue_ticket(by=by)})


async def person_of(ticket):  # in the handshake of your own consumer
    login = await ause_ticket(ticket=ticket)
    return login.actor
```
""",
    "Visitors": """\
```python
from chatmemory.services import (
    Actor,
    adopt_visitor,
    authenticate_visitor,
    create_visitor,
    offer_adoption,
    open_session,
)

visitor = create_visitor()  # store visitor.token in a cookie until visitor.ends_at
open_session(session_key="help", by=authenticate_visitor(token=visitor.token).actor, title="Help")

offer = offer_adoption(by=Actor.user(user), token=visitor.token)  # after a login
if offer is not None and not offer.is_done:
    new_keys = adopt_visitor(by=Actor.user(user), visitor=offer.visitor)
```
""",
}
"""The beginning of each section: text and an example, which tests/test_examples.py runs."""

TYPES = """\
The exported types are for annotations. The others are results that no code must name.
"""

DOCUMENTED = ("chatmemory.services.", "chatmemory.access.", "chatmemory.models.paging")
"""The modules of the types that this page describes."""

MAX_LINE_CHARS = 88


class _Annotation(str):
    """An annotation that a signature shows without quotes."""

    __slots__ = ()

    __repr__ = str.__str__


def page() -> str:
    """Return the page as Markdown: functions by subject, then their types."""
    sections = [INTRO]
    for subject, names in SUBJECTS.items():
        sections += [f"## {subject}\n", EXAMPLES[subject]]
        sections += [_function(name) for name in names]
    sections.append("## Types\n")
    sections.append(TYPES)
    sections += [_type(name, kind) for name, kind in sorted(_types().items())]
    return "\n".join(sections)


def exported_functions() -> dict[str, Callable[..., Any]]:
    """Return the exported functions by name, without async versions."""
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
    versions = [f"`{version}`" for version in (name, f"a{name}") if version in services.__all__]
    code = f"```python\n{_signature(name, function)}\n```"
    return f"### {', '.join(versions)}\n\n{code}\n\n{_docstring(function)}\n"


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


def _types() -> dict[str, type]:
    """Return the exported classes, and those that a signature or a field of a result names."""
    found = exported_types()
    functions = map(inspect.unwrap, exported_functions().values())
    left = [(str(inspect.signature(function)), function.__globals__) for function in functions]
    while left:
        text, names = left.pop()
        for name in set(re.findall(r"\w+", text)) - found.keys():
            kind = names.get(name)
            if inspect.isclass(kind) and kind.__module__.startswith(DOCUMENTED):
                found[name] = kind
                left.append((_field_types(kind), vars(sys.modules[kind.__module__])))
    return found


def _field_types(kind: type) -> str:
    return " ".join(map(_annotation, kind.__annotations__.values()))


def _type(name: str, kind: type) -> str:
    mark = "" if name in services.__all__ else " (not exported)"
    lines = [f"### `{name}`{mark}\n", _docstring(kind)]
    if is_dataclass(kind):
        columns = [f"`{field.name}: {field.type}`" for field in fields(kind)]
        lines.append(f"\nFields: {', '.join(columns)}.")
    elif annotations := kind.__annotations__:
        columns = [f"`{key}: {_annotation(value)}`" for key, value in annotations.items()]
        lines.append(f"\nKeys: {', '.join(columns)}.")
    return "\n".join(lines) + "\n"


def _annotation(value: Any) -> str:
    return str(getattr(value, "__forward_arg__", value))


def _docstring(documented: Any) -> str:
    return inspect.cleandoc(documented.__doc__ or "")


if __name__ == "__main__":
    (Path(__file__).resolve().parents[1] / "reference/services.md").write_text(page())
