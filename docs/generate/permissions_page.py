"""Generates docs/reference/permissions.md from the models, the actions of jobs and the roles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import django
from django.conf import settings

if not settings.configured:  # run as a script
    names = ("admin", "auth", "contenttypes", "messages", "sessions")
    apps_of_django = [f"django.contrib.{name}" for name in names]
    settings.configure(
        INSTALLED_APPS=[
            *apps_of_django,
            "chatmemory",
            "chatmemory.search",
            "chatmemory.statistics",
        ],
    )
    django.setup()

from django.apps import apps
from django.utils import translation

from chatmemory.management.roles import roles
from chatmemory.services.jobs.actions import ACTIONS

INTRO = """# The permissions

Permissions of Django are for operators in the admin, who also need `is_staff`. Each page and action
checks its own, and those of a conversation `view_session` too. `has_perm` gets the name with the
label of the app, such as `chatmemory` and a dot before `view_session`.
`python docs/generate/permissions_page.py` generates this page from the code.

| access | what it checks |
| --- | --- |
"""

ACCESS = (
    (
        "the admin",
        "these permissions; a refusal is in the audit (`refused`), once an hour for each operator "
        "and permission",
    ),
    (
        "chat pages, websockets, REST",
        "no permission: people reach only their own sessions, by their login, "
        "[`REACH`](settings.md#reach) and [`GATE`](settings.md#gate). A superuser has no more here",
    ),
    (
        "services",
        "the actor: `Actor.user` and `Actor.visitor` reach their own scope; `Actor.operator`, "
        "`Actor.command` and `Actor.server` each scope. Your code checks whether the operator may",
    ),
    (
        "commands",
        "no permission: each person with a shell on the server may run them. `--by` is only "
        "recorded",
    ),
)

AFTER_ACCESS = """
Jobs check the permissions of their operator again while they run.
"""

EFFECTS: Mapping[str, str] = {
    "view_session": "the list of conversations, and the page of each without its messages",
    "view_transcript": "messages of a conversation, and the search in it",
    "view_unmasked": "with `view_transcript`: reveals a conversation if "
    "[`TRANSCRIPTS`](settings.md#transcripts) is `masked`",
    "trim_history": "hides the oldest messages",
    "clear_history": "hides all messages",
    "purge_history": "hides the conversation",
    "restore_history": "undoes a trim, a clear or a purge",
    "redact_message": "with `view_transcript`: deletes the text of a message permanently",
    "stop_turn": "stops a running reply, or ends a stuck one",
    "archive_session": "closes a conversation for new messages, and opens it",
    "hold_session": "forbids removals, and allows them",
    "tag_session": "adds and removes tags",
    "note_session": "reads, adds and deletes notes of operators",
    "export_history": "downloads conversations, or all of a person",
    "erase_person": "deletes all data of a person permanently",
    "view_audit": "all audit entries, without further permissions",
    "view_health": "the page *Health*",
    "view_statistics": "the figures of all conversations, of the app `chatmemory.statistics`",
}
"""What each permission allows."""

ROLES = """## Roles

`manage.py chatmemory_roles` creates these groups. Run again, it adds missing permissions, and
removes none. Chat lead and Chat auditor get `view_statistics` only with `chatmemory.statistics`.

"""


def page() -> str:
    """Return the page as Markdown: the permissions, then the roles that have them."""
    access = "".join(f"| {access} | {checked} |\n" for access, checked in ACCESS)
    return "\n".join(
        [
            INTRO + access + AFTER_ACCESS,
            "## Permissions\n",
            *_rows(),
            "",
            ROLES + _table_of_roles(),
        ]
    )


def permissions() -> Iterator[tuple[str, str]]:
    """Yield each permission of the models, as `app.codename`, with the text that Django shows."""
    for config in apps.get_app_configs():
        if config.name.partition(".")[0] != "chatmemory":
            continue
        for model in config.get_models():
            for name in model._meta.default_permissions:
                yield (
                    f"{config.label}.{name}_{model._meta.model_name}",
                    f"Can {name} {model._meta.verbose_name}",
                )
            for name, text in model._meta.permissions:
                yield f"{config.label}.{name}", str(text)


def _rows() -> Iterator[str]:
    yield "| permission | in Django | allows | actions and `chatmemory_action` |"
    yield "| --- | --- | --- | --- |"
    with translation.override("en"):
        for name, text in permissions():
            codename = name.partition(".")[2]
            actions = [
                f"`{key}`" for key, action in ACTIONS.items() if action.permission == codename
            ]
            yield f"| `{_shown(name)}` | {text} | {EFFECTS[codename]} | {' '.join(actions)} |"


def _shown(name: str) -> str:
    return name.removeprefix("chatmemory.")


def _table_of_roles() -> str:
    found = roles()
    header = f"| permission | {' | '.join(found)} |\n| --- |{' --- |' * len(found)}\n"
    rows = ""
    for name, _ in permissions():
        cells = ["yes" if name in found[role] else "" for role in found]
        rows += f"| `{_shown(name)}` | {' | '.join(cells)} |\n"
    return header + rows


if __name__ == "__main__":
    (Path(__file__).resolve().parents[1] / "reference/permissions.md").write_text(page())
