"""The chapter that a test follows, and the operators who follow it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.core.management import call_command
from django.test import Client

from tests.factories import make_user
from tests.handbook.reading import Chapter, chapters
from tests.handbook.visiting import Visit


@pytest.fixture
def chapter(request: pytest.FixtureRequest) -> Iterator[Chapter]:
    """Return the chapter that the test is named for; at the end it must be consumed."""
    found = Chapter(chapters()[request.node.originalname.removeprefix("test_")])
    yield found
    found.assert_done()


@pytest.fixture
def sign_in(chapter: Chapter, db: None) -> Callable[..., Visit]:
    """Return a function that opens the admin as Olga, an operator of these groups alone."""

    def visit(*groups: str, **columns: Any) -> Visit:
        call_command("chatmemory_roles", stdout=StringIO())
        user = User.objects.filter(username="olga").first()
        user = user or make_user("olga", is_staff=True, **columns)
        user.groups.set(Group.objects.filter(name__in=groups))
        client = Client()
        client.force_login(user)
        return Visit(chapter, client)

    return visit
