"""Pages of sessions: their cursors, and pages of sessions with unusual times."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from chatmemory.models import Session
from tests.api.calls import SESSIONS, problem
from tests.factories import make_session

pytestmark = [pytest.mark.django_db, pytest.mark.database, pytest.mark.regression]


def test_sessions_with_imported_times_are_listed_once(api, ann):
    times = [datetime(year, 1, 1, tzinfo=UTC) for year in (9999, 2300, 2026, 1969, 1001)]
    for number, at in enumerate([*times, None]):
        session = make_session(f"s{number}", owner=ann)
        Session.objects.filter(pk=session.pk).update(last_message_at=at)
    found, cursor = [], ""
    while cursor is not None:
        page = api.get(f"{SESSIONS}?limit=1{cursor and f'&cursor={cursor}'}").json()
        found += [session["key"] for session in page["sessions"]]
        cursor = page["next"]
    assert found == ["s0", "s1", "s2", "s3", "s4", "s5"]


@pytest.mark.parametrize(
    "cursor",
    ["", "1", "-.1", "--1.1", "1.", f"{18 * '9'}.1", f"-{18 * '9'}.1", f"{19 * '1'}.1", ".1%0A"],
)
def test_an_invalid_cursor_is_rejected(api, cursor):
    assert problem(api.get(f"{SESSIONS}?cursor={cursor}")) == (400, "bad_field", "cursor")


def test_sessions_are_filtered_by_a_registered_key_of_their_metadata(api, ann, settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "METADATA_FILTERS": ["team"]}
    for key, owner, team in (("a", ann, "gold:x"), ("b", ann, "silver"), ("c", None, "gold:x")):
        make_session(key, owner=owner, metadata={"team": team, "secret": team})
    listed = api.get(f"{SESSIONS}?metadata=team:gold:x").json()["sessions"]
    assert [session["key"] for session in listed] == ["a"]
    for wrong in ("secret:silver", "team", "team:", ":x"):
        answer = problem(api.get(f"{SESSIONS}?metadata={wrong}"))
        assert answer == (400, "bad_field", "metadata"), wrong
