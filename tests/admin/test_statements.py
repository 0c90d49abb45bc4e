"""How many statements each page of the admin executes for an operator who has all permissions."""

from __future__ import annotations

from typing import Any

import pytest
from django.apps import apps
from django.contrib.auth.models import Permission
from django.contrib.contenttypes.models import ContentType
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from tests.admin.scene import MASKED, Page, Scene, all_pages, make_scene
from tests.admin.visits import operator

pytestmark = [pytest.mark.slow, pytest.mark.django_db]

MOST = 12
READING = 6
"""The first reading of an hour is recorded in a transaction of its own: six statements more."""
PROBES = 2
"""A server calls the probes of Health at most once in some seconds, in a thread; a test in each
request."""
DERIVED = 4
"""Each counts the derived rows of a model of the optional apps."""
LAG = 3
"""Chats without a complete index, of those that were active since yesterday."""
ACTION = {
    **dict.fromkeys(("clear", "purge", "restore", "stop"), 10),
    **dict.fromkeys(("tag", "untag"), 8),
    "export": 7,
}
TRIM_OF_ONE = 11
"""It reads the messages at the cut, and adds them to the reading of the page of the session."""
STATEMENTS = {
    "list": 10,
    "list of none": 7,
    "list masked": 10,
    "conversation": 12 + READING,
    "conversation running": 11 + READING,
    "conversation purged": 10 + READING,
    "conversation held": 11 + READING,
    "conversation of the server": 11 + READING,
    "conversation masked": 12 + READING,
    "reveal": 5,
    "log": 7,
    "people": 6,
    "people erased": 8,
    "person": 12 + DERIVED,
    "person export": 5,
    "person erase": 9 + DERIVED,
    "message": 9,
    "redact": 7,
    "redact a turn": 7,
    "search": 7,
    "tags": 6,
    "job": 10,
    "job running": 8,
    "undo": 8,
    "jobs": 5,
    "log of a message": 9,
    "audit": 6,
    "audit readings": 7,
    "verify": 7,
    "audit entry": 7,
    "log of an entry": 7,
    "statistics": 9,
    "search in messages": 7,
    "search in nothing": 5,
    "threads": 5,
    "health": 9 + PROBES + LAG,
}
"""For each page, the statements of the first visit on PostgreSQL; `ACTION` has those of actions."""


@pytest.fixture
def scene() -> Scene:
    return make_scene()


@pytest.fixture
def admin(scene: Scene) -> Client:
    rights = Permission.objects.values_list("codename", flat=True)
    client = operator(*rights)
    ContentType.objects.get_for_models(*apps.get_models())  # which the process keeps
    return client


def statements(client: Client, address: str) -> int:
    with CaptureQueriesContext(connection) as queries:
        assert client.get(address).status_code == 200
    return len(queries)


def expected(page: Page) -> int:
    other, _, action = page.name.partition("action ")
    if other:
        return STATEMENTS[page.name]
    if action == "trim one":
        return TRIM_OF_ONE
    # One session has a title, so its beginning is not read.
    name = action.removesuffix(" one")
    return ACTION.get(name, 9) - (name != action)


@pytest.mark.parametrize(("pages", "mode"), [(all_pages(), "normal"), (MASKED, "masked")])
def test_each_page_executes_its_number_of_statements(
    scene: Scene, admin: Client, settings: Any, pages: list[Page], mode: str
) -> None:
    settings.CHATMEMORY = {**settings.CHATMEMORY, "TRANSCRIPTS": mode}
    found = {page.name: statements(admin, scene.address(page.path)) for page in pages}
    if connection.vendor == "postgresql":
        assert found == {page.name: expected(page) for page in pages}
    again = {
        page.name: statements(admin, scene.address(page.path))
        for page in pages
        if found[page.name] > MOST + DERIVED
    }
    assert {name: count for name, count in again.items() if count > MOST + DERIVED} == {}
