"""The groups that `chatmemory_roles` creates, each with its permissions."""

from __future__ import annotations

from collections import defaultdict

READING = ("view_session", "view_transcript", "note_session", "tag_session")
ROLES = {
    "Chat support": (*READING, "stop_turn", "archive_session"),
    "Chat lead": (
        *READING,
        "stop_turn",
        "archive_session",
        "trim_history",
        "clear_history",
        "purge_history",
        "restore_history",
        "redact_message",
        "hold_session",
        "view_unmasked",
        "view_health",
    ),
    "Chat data protection": (
        "view_session",
        "view_transcript",
        "hold_session",
        "restore_history",
        "redact_message",
        "export_history",
        "erase_person",
        "view_audit",
    ),
    "Chat auditor": ("view_audit", "view_health"),
}
"""The suggested groups, with their permissions of the core."""

_added: defaultdict[str, list[str]] = defaultdict(list)


def extend_role(role: str, permission: str) -> None:
    """Add the permission `app.codename` to a role, from `ready()`.

    A repeated call changes nothing. Raises LookupError for an unknown role.
    """
    if role not in ROLES:
        raise LookupError(f"Unknown role {role!r}; the roles are {', '.join(ROLES)}.")
    _added[role].append(permission)


def roles() -> dict[str, list[str]]:
    """Return the permissions of each role, as `app.codename`."""
    return {
        role: list(dict.fromkeys([*(f"chatmemory.{name}" for name in codenames), *_added[role]]))
        for role, codenames in ROLES.items()
    }
