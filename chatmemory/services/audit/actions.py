"""The actions that the audit records: those of the core, and of optional apps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from django.db.models import TextChoices

from chatmemory.models import AuditAction, AuditEntry

if TYPE_CHECKING:
    from django.utils.functional import _StrPromise

MAX_CODE_CHARS = AuditEntry._meta.get_field("action").max_length or 0

_actions: dict[str, TextChoices] = {action.value: action for action in AuditAction}


def register_audit_action(action: TextChoices) -> None:
    """Let an optional app record an action, and the admin show its label and filter by it.

    Call it in `ready()`; a repeated call changes nothing. A registered action is no migration.
    Raises ValueError if another action has this code, or the code is too long.
    """
    if len(action.value) > MAX_CODE_CHARS:
        raise ValueError(f"{action.value!r} is longer than {MAX_CODE_CHARS} characters.")
    if _actions.setdefault(action.value, action) is not action:
        raise ValueError(f"Another audit action has the code {action.value!r}.")


def check_registered(action: TextChoices) -> None:
    """Raise LookupError for an action that the admin would show as a raw code."""
    if _actions.get(action.value) is not action:
        raise LookupError(f"Unknown action {action.value!r}: register_audit_action() adds it.")


def action_labels() -> Mapping[str, str | _StrPromise]:
    """Return the labels of all actions by their codes, those of the core first."""
    return {code: action.label for code, action in _actions.items()}
