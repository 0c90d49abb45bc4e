"""What it costs the database to let somebody in."""

from __future__ import annotations

import pytest
from asgiref.sync import async_to_sync
from django.db import connection
from django.test.utils import CaptureQueriesContext

from chatmemory.consumers import chat
from tests.factories import make_session
from tests.servers import Tab, sign_in


@pytest.mark.django_db
@pytest.mark.parametrize(("fresh_seconds", "count"), [(60, 4), (0, 6)])
def test_a_handshake_and_hello_take_four_statements(monkeypatch, fresh_seconds, count):
    """The login, its user, the session, its rows; a late hello looks at the first two again."""
    monkeypatch.setattr(chat, "FRESH_SECONDS", fresh_seconds)
    ann = sign_in()
    make_session(owner=ann.user)

    async def come() -> None:
        async with Tab(ann) as tab:
            await tab.hello()

    with CaptureQueriesContext(connection) as queries:
        async_to_sync(come)()
    assert len(queries) == count
