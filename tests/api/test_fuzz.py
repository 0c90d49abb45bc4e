"""Random calls by the API's own schema: no answer is a server error or undocumented.

`FUZZ_CALLS` is their number; `make ci-long` sets it.
"""

from __future__ import annotations

import os
import uuid
from functools import cache
from typing import Any

import pytest
import schemathesis
from django.conf import settings as django_settings
from django.urls import Resolver404, resolve
from drf_spectacular.generators import SchemaGenerator
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode, checks

from chatmemory import services
from chatmemory.api.operations import OPERATIONS
from chatmemory.models import Ticket
from chatmemory.services.turns import progress
from project.wsgi import application
from tests.factories import make_messages
from tests.servers import live_process, sign_in

CALLS = int(os.environ.get("FUZZ_CALLS", "100"))
CSRF_TOKEN = "a" * 32
CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]
PARTS = ("key", "seq", "turn", "undo")
"""The parts of URLs. In a call at most one of them is random."""
live = live_process

pytestmark = [pytest.mark.slow, pytest.mark.hypothesis, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def ann(live, settings):
    settings.CHATMEMORY = {
        **settings.CHATMEMORY,
        "READS_PER_MINUTE": None,
        "WRITES_PER_MINUTE": None,
        "MAX_SESSIONS_PER_USER": None,
        "SELF_SERVICE": ["export", "erase"],
    }
    return sign_in()


@cache
def operations():
    """Return the operations of the schema by name."""
    document = SchemaGenerator().get_schema(request=None, public=True)
    schema = schemathesis.openapi.from_dict(closed(document))
    schema.app = application
    found = (each.ok() for each in schema.get_all_operations())
    return {each.definition.raw["operationId"]: each for each in found}


def closed(value: Any) -> Any:
    """Close each object of a schema, so that an undocumented field violates it."""
    if isinstance(value, list):
        return [closed(each) for each in value]
    if not isinstance(value, dict):
        return value
    ending = {"additionalProperties": False} if "properties" in value else {}
    return {name: closed(each) for name, each in value.items()} | ending


def restored(ann, names):
    """Store what earlier calls removed; return the parts of the URL, by these names."""
    session = services.open_session(**ann.talk)
    if not session.last_seq:
        services.append_messages(**ann.talk, messages=make_messages("hi", "hello"))
    Ticket.objects.all().delete()
    if session.archived_at is None:
        ended_turn(ann)
    undo = purged(ann) if "undo" in names else 0
    known = {"key": "talk", "seq": 1, "turn": "c1", "undo": undo}
    return {name: known[name] for name in names}


def ended_turn(ann):
    claim = services.admit_turn(**ann.talk, client_id="c1", content="hi", owner="fuzz").claim
    if claim is not None:
        reply = {"role": "assistant", "content": "hello"}
        progress.finish_turn(claim=claim, status="complete", message=reply)


def purged(ann):
    """Purge a new session; return the number that restores it."""
    where = {"session_key": str(uuid.uuid4()), "by": ann.talk["by"]}
    services.open_session(**where)
    return services.purge_session(**where, reason="test").pk


# The threads of turns and retries use `random` while an example is drawn.
@pytest.mark.filterwarnings("ignore:Do not use the `random` module")
@pytest.mark.parametrize("view", OPERATIONS, ids=" ".join)
def test_each_answer_is_documented(ann, view):
    described = OPERATIONS[view]
    operation = operations()[f"chatmemory_{described.name}"]
    modes = [operation.as_strategy(generation_mode=mode) for mode in GenerationMode]
    cookies = {django_settings.SESSION_COOKIE_NAME: ann.cookie, "csrftoken": CSRF_TOKEN}

    @settings(
        max_examples=-(-CALLS // (len(OPERATIONS) - 1)),  # without health/, which has no parameter
        suppress_health_check=[*HealthCheck],
    )
    @given(case=st.one_of(modes), random_part=st.sampled_from([*PARTS, None, None, None]))
    def call(case, random_part):
        parts = case.path_parameters or {}
        known = restored(ann, parts.keys() - {random_part})
        case.path_parameters = {**parts, **known}
        if described.name == "erase_own_data" and random_part is None:
            case.body = {"confirm": ann.user.username}
        if described.name == "update_session" and isinstance(case.body, dict):
            case.body.setdefault("title", "A kettle")  # most generated bodies have no field
        assume(is_served(case, view))
        case.headers = {**(case.headers or {}), "X-CSRFToken": CSRF_TOKEN}
        case.cookies = cookies
        answer = case.call()
        case.validate_response(answer, checks=CHECKS)
        if "application/problem+json" in answer.headers.get("content-type", ()):
            assert answer.json()["code"] in described.codes()[answer.status_code]

    call()


def is_served(case, view):
    """Whether the URL belongs to the view: a random part of a path can lead elsewhere."""
    try:
        found = resolve(case.formatted_path.partition("?")[0])
    except Resolver404:
        return False
    return getattr(found.func, "cls", type(None)).__name__ == view[0]
