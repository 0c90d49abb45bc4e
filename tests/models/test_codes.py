"""Codes in rows: which of them may grow without a migration, and which are fixed."""

from __future__ import annotations

import pytest

from chatmemory import errors
from chatmemory.access import actors
from chatmemory.access.actors import Actor, check_person, importing_scope, purged_scope
from chatmemory.errors import BadInput, ChatMemoryError
from chatmemory.models import (
    AuditAction,
    AuditEntry,
    Job,
    JobAction,
    JobItem,
    Maintenance,
    Message,
    Turn,
    installed_models,
)

ERRORS = [
    error.code
    for error in vars(errors).values()
    if isinstance(error, type) and issubclass(error, ChatMemoryError)
]
OPEN = [
    (AuditEntry, "action", AuditAction.values),
    (Job, "action", JobAction.values),
    (Job, "error", []),
    (JobItem, "outcome", [JobItem.DONE]),
    (Maintenance, "name", Maintenance.Task.values),
    (Message, "error", ERRORS),
    (Turn, "error", ERRORS),
]
"""Columns to which later versions and optional apps add codes."""

FIXED = {
    "chatmemory.Feedback.value": [1, -1],
    "chatmemory.Job.status": ["queued", "running", "complete", "cancelled", "failed"],
    "chatmemory.Message.role": ["system", "user", "assistant", "tool"],
    "chatmemory.Message.status": ["complete", "interrupted", "failed"],
    "chatmemory.Message.feedback": [1, -1],
    "chatmemory.Turn.status": [
        *("waiting", "running"),
        *("complete", "interrupted", "failed", "cancelled"),
    ],
}
"""Columns with choices: a further one is a migration, and older code must be able to read it."""


@pytest.mark.parametrize(("model", "column", "codes"), OPEN)
def test_a_code_that_can_be_added_is_no_choice_and_has_32_characters(model, column, codes):
    field = model._meta.get_field(column)
    assert (field.max_length, field.choices) == (32, None)
    assert [code for code in codes if len(code) > 32] == []


def test_the_columns_of_actions_are_all_open():
    found = {
        model
        for model in installed_models()
        for field in model._meta.concrete_fields
        if field.name == "action"
    }
    assert found == {model for model, column, _ in OPEN if column == "action"}


def test_no_status_and_no_role_is_added_without_notice():
    choices = {
        f"{model._meta.label}.{field.name}": [code for code, _ in field.flatchoices]
        for model in installed_models()
        for field in model._meta.concrete_fields
        if field.choices and model._meta.app_label == "chatmemory"
    }
    assert choices == FIXED


def test_the_kinds_of_scopes_are_fixed_and_two_of_them_are_internal():
    assert (actors.SERVER, actors._KINDS) == ("server", ("user", "visitor", "importing", "removed"))
    assert actors.INTERNAL_PREFIXES == ("importing:", "removed:")
    server = Actor.server("tests")
    for scope in (importing_scope("user:1"), purged_scope(1)):
        with pytest.raises(BadInput, match="is an internal scope"):
            check_person(scope)
    with pytest.raises(BadInput, match="is not a scope"):
        actors.scope_for(server, "team:1")
