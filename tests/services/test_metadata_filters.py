"""Lists of sessions by a text in the metadata, whose keys METADATA_FILTERS registers."""

from __future__ import annotations

import re

import pytest
from django.db import connection

from chatmemory import services
from chatmemory.access.actors import user_scope
from chatmemory.errors import BadInput
from chatmemory.models import Session
from chatmemory.services import Actor, list_sessions, open_session, update_session
from tests.factories import BY, make_user
from tests.test_examples import run_example

pytestmark = [pytest.mark.django_db, pytest.mark.database]


@pytest.fixture(autouse=True)
def team_and_contains(settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "METADATA_FILTERS": ["team", "contains"]}


@pytest.fixture
def ann():
    return make_user("ann")


def fill(user, **metadata):
    """Open a session for each text, or other value, of the key `team`."""
    for key, team in metadata.items():
        given = {"team": team, "contains": key}
        open_session(session_key=key, scope=user_scope(user), by=BY, metadata=given)


def keys(user, **metadata):
    found = list_sessions(by=Actor.user(user), metadata=metadata).sessions
    return [session.key for session in found]


def test_the_sessions_with_exactly_this_text_are_listed(ann):
    fill(ann, a="gold", b="Gold", c=" gold", d=["gold"], e={"gold": 1}, f=None)
    open_session(session_key="g", by=Actor.user(ann))
    assert keys(ann, team="gold") == ["a"]
    assert keys(ann, team="Gold") == ["b"]
    assert keys(ann, team="silver") == []
    assert len(keys(ann)) == 7


def test_the_example_of_the_documentation_lists_a_team(ann):
    fill(ann, a="gold", b="silver")
    page = run_example("docs/howto/new-sessions.md", 'metadata={"team": "gold"}', user=ann)["page"]
    assert [session.key for session in page.sessions] == ["a"]


def test_several_keys_are_all_required_and_no_key_is_a_look_up(ann):
    fill(ann, a="gold", b="gold", c="silver")
    assert keys(ann, team="gold", contains="b") == ["b"]
    assert keys(ann, contains="c", team="gold") == []


def test_a_key_that_continues_another_is_a_key_of_its_own(ann, settings):
    keys_of_host = ["team", "team__color"]
    settings.CHATMEMORY = {**settings.CHATMEMORY, "METADATA_FILTERS": keys_of_host}
    given = {"team": "gold", "team__color": "red"}
    open_session(session_key="a", scope=user_scope(ann), by=BY, metadata=given)
    assert keys(ann, **given) == ["a"]


def test_another_person_with_the_same_text_is_not_listed(ann):
    fill(ann, a="gold")
    fill(make_user("ben"), b="gold")
    assert keys(ann, team="gold") == ["a"]


def test_the_pages_have_the_order_of_the_list(ann):
    fill(ann, a="gold", b="silver", c="gold", d="gold")
    given = {"by": Actor.user(ann), "metadata": {"team": "gold"}, "limit": 2}
    first = list_sessions(**given)
    second = list_sessions(**given, cursor=first.next)
    pages = [[session.key for session in page.sessions] for page in (first, second)]
    assert (pages, second.next) == ([["d", "c"], ["a"]], None)


def test_the_list_follows_a_change_a_purge_and_a_restore(ann):
    fill(ann, a="gold")
    address = {"session_key": "a", "scope": user_scope(ann), "by": BY}
    update_session(**address, metadata={"team": "silver"})
    assert (keys(ann, team="gold"), keys(ann, team="silver")) == ([], ["a"])
    entry = services.purge_session(**address, reason="")
    assert keys(ann, team="silver") == []
    services.restore_session(entry_pk=entry.pk, by=BY, reason="", scope=address["scope"])
    assert keys(ann, team="silver") == ["a"]


@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        ({"secret": "x"}, "keys of METADATA_FILTERS"),
        ({"team__contains": "x"}, "keys of METADATA_FILTERS"),
        ({"team": ""}, "1 to 200 characters"),
        ({"team": "x" * 201}, "1 to 200 characters"),
    ],
)
def test_another_key_and_a_text_of_a_wrong_length_are_refused(ann, metadata, why):
    with pytest.raises(BadInput, match=why) as caught:
        keys(ann, **metadata)
    assert (caught.value.code, caught.value.field) == ("bad_field", "metadata")


def test_without_the_setting_no_key_is_registered(ann, settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "METADATA_FILTERS": []}
    with pytest.raises(BadInput):
        keys(ann, team="gold")


def test_the_databases_differ_in_other_values_than_texts_as_documented(ann):
    fill(ann, a="gold ", b=7, c=None)
    is_mariadb, is_postgresql = (connection.vendor == name for name in ("mysql", "postgresql"))
    assert keys(ann, team="gold") == ["a"] * is_mariadb
    assert keys(ann, team="7") == ["b"] * is_mariadb
    assert keys(ann, team="null") == ["c"] * (not is_postgresql)


@pytest.mark.skipif(connection.vendor != "postgresql", reason="only for PostgreSQL")
def test_the_index_of_the_documentation_is_used(ann):
    fill(ann, a="gold")
    names = run_example("docs/howto/new-sessions.md", "shop_session_team")
    [operation] = names["Migration"].operations
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute(re.sub("CONCURRENTLY ", "", operation.sql))
        cursor.execute("SET LOCAL enable_seqscan = off")
        plan = Session.objects.having(metadata={"team": "gold"}).explain()
    assert "shop_session_team" in plan
