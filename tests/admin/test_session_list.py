"""The list of sessions: columns, filters, search, counts and pages, and the indexes they use."""

from __future__ import annotations

import json
import re
from datetime import timedelta

import pytest
from django.contrib.admin import site
from django.contrib.auth.models import Permission
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils.timezone import now

from chatmemory import services
from chatmemory.admin import SessionAdmin, keyset
from chatmemory.admin.sessions.filters import FILTERS
from chatmemory.admin.sessions.listing import listed
from chatmemory.models import Feedback, Session, SessionTag, Turn
from tests.factories import BY, make_messages, make_user
from tests.factories import make_session as make_unused_session

pytestmark = pytest.mark.django_db

LIST = "/admin/chatmemory/session/"
DAY = timedelta(days=1)


def operator(*rights):
    user = make_user(is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=rights))
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def admin():
    return operator("view_session", "view_transcript", "purge_history", "view_user")


def make_session(key="talk", **columns):
    """Store a session that has had a message."""
    return make_unused_session(key, **{"last_seq": 1, **columns})


def change_list(client, address=LIST, **query):
    answer = client.get(address, query) if query else client.get(address)
    assert answer.status_code == 200
    return answer.context["cl"]


def keys(client, **query):
    return [session.key for session in change_list(client, **query).result_list]


def make_turn(session, status="complete", *, number=1, **columns):
    return Turn.objects.create(
        session=session,
        client_id=f"c{number}",
        status=status,
        epoch=session.epoch,
        **{"user_seq": number, "ended_at": now() - timedelta(minutes=5), **columns},
    )


@pytest.mark.slow
def test_the_columns_show_words_state_age_model_and_tags(admin):
    ann = make_user("ann")
    asked = make_session("untitled", owner=ann)
    where = {"session_key": "untitled", "scope": asked.scope, "by": BY}
    services.append_messages(messages=make_messages("where is my order?", "here"), **where)
    services.tag_session(tag="vip", reason="x", **where)
    make_turn(asked, "failed", model="gpt-x", error="model_timeout")
    titled = make_session("titled", owner=ann, title="Kettle", running="c1")
    started_at = now() - timedelta(minutes=2)
    make_turn(titled, "running", started_at=started_at, ended_at=None)
    waiting = make_session("waiting", owner=ann, waiting=1)
    make_turn(waiting, "waiting", user_seq=None, ended_at=None)
    make_session("held", owner=ann, held_at=now() - 3 * DAY)
    rows = {session.key: listed(session) for session in change_list(admin).result_list}
    assert (rows["untitled"].name, rows["untitled"].model) == ("where is my order?", "gpt-x")
    assert rows["untitled"].tags == ["vip"]
    assert {key: str(row.state) for key, row in rows.items()} == {
        "untitled": "failed",
        "titled": "running",
        "waiting": "waiting",
        "held": "held",
    }
    assert rows["titled"].since == started_at
    page = admin.get(LIST).content.decode()
    assert ">3 days ago<" in page
    assert re.search(r">\d min ago<", page)
    assert "person/?scope=user%3A" in page


@pytest.mark.slow
def test_only_the_last_turn_decides_whether_a_session_failed(admin):
    session = make_session("s")
    make_turn(session, "failed", number=1)
    make_turn(session, "complete", number=3)
    [row] = change_list(admin).result_list
    assert str(listed(row).state) == "idle"


@pytest.mark.slow
def test_first_words_need_the_permission_for_transcripts():
    client = operator("view_session")
    make_session("order-7")
    services.append_messages(
        session_key="order-7", scope="server", by=BY, messages=make_messages("a secret")
    )
    assert listed(change_list(client).result_list[0]).name == "order-7"
    assert "a secret" not in client.get(LIST).content.decode()


@pytest.mark.slow
def test_the_pages_contain_each_row_once_in_both_directions(admin, monkeypatch):
    monkeypatch.setattr("chatmemory.admin.readonly.ReadOnlyAdmin.list_per_page", 3)
    today = now()
    for number in range(11):
        day = today - (number % 3) * DAY
        silent = number % 4 == 0
        make_session(
            f"s{number}", last_active_day=day.date(), last_message_at=None if silent else day
        )
    in_order = Session.objects.order_by("-last_active_day", "-last_message_at", "-pk")
    expected = [session.key for session in in_order]
    seen, address = [], LIST
    while address:
        page = change_list(admin, address)
        seen.append([session.key for session in page.result_list])
        last, address = page, page.older_url and LIST + page.older_url
    assert [key for page in seen for key in page] == expected
    back, address = [], LIST + last.newer_url
    while address:
        page = change_list(admin, address)
        back.insert(0, [session.key for session in page.result_list])
        address = page.newer_url and LIST + page.newer_url
    assert back == seen[:-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "cursor", ["", "x", "W10=", "WzEsMiwzXQ==", "WyJhIiwiYiIsImMiXQ==", "é", "A" * 9_000]
)
def test_an_invalid_cursor_is_the_first_page(admin, cursor):
    make_session("s")
    assert keys(admin, after=cursor) == keys(admin, before=cursor) == ["s"]


@pytest.mark.slow
def test_a_page_keeps_the_filters_and_a_filter_drops_the_page(admin, monkeypatch):
    monkeypatch.setattr("chatmemory.admin.readonly.ReadOnlyAdmin.list_per_page", 1)
    for key in ("a", "b"):
        make_session(key, archived_at=now())
    page = change_list(admin, state="archived")
    assert "state=archived" in page.older_url
    second = admin.get(LIST + page.older_url)
    assert "after=" not in second.content.decode().replace(page.older_url, "").split("<nav")[0]


@pytest.mark.slow
def test_counts_are_true_or_stated_as_more_than(admin, monkeypatch):
    monkeypatch.setattr(keyset, "MAX_COUNTED", 60)
    for number in range(60):
        make_session(f"s{number}")
    assert change_list(admin).count_text == "60"
    make_session("one-more")
    page = admin.get(LIST)
    assert page.context["cl"].count_text == "more than 60"
    text = page.content.decode()
    assert "more than 60 conversations" in text
    assert "Select all that match (more than 60)" in text
    assert "All more than 60 selected" in text


@pytest.mark.slow
def test_each_filter_selects(admin, settings):
    ann = make_user("ann")
    plain, failed, rated = (make_session(key, owner=ann) for key in ("plain", "failed", "rated"))
    make_turn(failed, "failed", error="model_timeout", model="gpt-x")
    make_turn(plain, "failed", error="blocked", ended_at=now() - 3 * DAY)
    make_turn(rated, "interrupted", ended_at=now() - 40 * DAY)
    Feedback.objects.create(session=rated, turn="c1", user_seq=1, value=-1)
    SessionTag.objects.create(session=plain, tag="vip")
    Session.objects.filter(pk=rated.pk).update(expires_at=now() + 3 * DAY, last_seq=60)
    Session.objects.filter(pk=plain.pk).update(created_at=now() - 9 * DAY)
    assert keys(admin, turns="failed_day") == ["failed"]
    assert set(keys(admin, turns="failed_week")) == {"failed", "plain"}
    assert keys(admin, turns="interrupted_week") == []
    assert keys(admin, error="model_timeout") == ["failed"]
    assert keys(admin, error="blocked") == ["plain"]
    assert keys(admin, feedback="bad") == ["rated"]
    assert keys(admin, feedback="good") == []
    assert keys(admin, model="gpt-x") == ["failed"]
    assert keys(admin, tag="vip") == ["plain"]
    assert keys(admin, state="soon") == ["rated"]
    Session.objects.filter(pk=rated.pk).update(expires_at=None, ttl_seconds=3 * 86_400)
    assert keys(admin, state="soon") == ["rated"]
    settings.CHATMEMORY = {**settings.CHATMEMORY, "SESSION_TTL": 86_400}
    Session.objects.filter(pk=rated.pk).update(ttl_seconds=300 * 86_400)
    assert "rated" not in keys(admin, state="soon")
    settings.CHATMEMORY = {**settings.CHATMEMORY, "SESSION_TTL": None}
    Session.objects.filter(pk=rated.pk).update(ttl_seconds=None)
    assert keys(admin, until=(now() - 8 * DAY).date()) == ["plain"]
    assert len(keys(admin, owner_is="ann")) == len(keys(admin, owner_is=plain.scope)) == 3
    assert keys(admin, owner_is="bob") == keys(admin, owner_is="user:0") == []
    assert keys(admin, active="today", length="50") == ["rated"]
    assert len(keys(admin, length="50")) == 3, "no index contains the length"


@pytest.mark.slow
def test_the_filter_by_owner_finds_purged_sessions(admin):
    session = make_session("s", owner=make_user("ann"))
    services.purge_session(session_key="s", scope=session.scope, by=BY, reason="x")
    assert keys(admin, state="purged", owner_is="ann") == ["s"]
    assert keys(admin, state="purged", q="ann") == ["s"]


@pytest.mark.slow
def test_a_search_finds_by_key_title_number_scope_name_and_address(admin):
    ann = make_user("ann", email="miller@example.com")
    session = make_session("order-4711", owner=ann, title="Kettle leaks")
    make_session("other", owner=make_user("bob"), title="Nothing")
    for term in ("order-47", "kettle LE", str(session.pk), session.scope, "Ann", "miller@exam"):
        assert keys(admin, q=term) == ["order-4711"], term
    for term in ("leaks", "rder", "9" * 30, "user:", "%", "_", "x@example.org"):
        assert keys(admin, q=term) == [], term


@pytest.mark.slow
def test_without_view_user_only_owners_are_searched_by_name():
    client = operator("view_session")
    make_session("s", owner=make_user("ann", email="miller@example.com"))
    assert keys(client, q="an") == ["s"]
    assert keys(client, q="miller@example.com") == []


@pytest.mark.slow
def test_the_list_takes_the_same_statements_for_any_number_of_rows(admin):
    counts = []
    for number in (2, 52):
        for key in range(number):
            session = make_session(f"{number}-{key}", owner=make_user())
            make_turn(session, "failed")
        for query in ({"turns": "failed_day"}, {"q": "2-"}, {"state": "running"}):
            with CaptureQueriesContext(connection) as queries:
                change_list(admin, **query)
            counts.append(len(queries))
    assert max(counts) <= 12


INDEXES = {
    "state=running": "chatmemory_turn_live",
    "state=waiting": "chatmemory_turn_live",
    "state=archived": "chatmemory_session_archived",
    "state=held": "chatmemory_session_held",
    "state=purged": "chatmemory_session_removed",
    "state=soon": "expires_at",
    "state=expired": "expires_at",
    "turns=failed_day": "chatmemory_turn_problem",
    "turns=interrupted_week": "chatmemory_turn_problem",
    "error=blocked": "chatmemory_turn_problem",
    "feedback=bad": "chatmemory_feedback_recent",
    "model=gpt-x": "chatmemory_turn_pkey",
    "tag=vip": "chatmemory_sessiontag_tag",
    "owner_is=user:7": "chatmemory_session_address",
    "active=week": "last_active_day",
    "from=2099-01-01": "chatmemory_session_created",
    "until=2026-01-01": "chatmemory_session_created",
    "q=order": "chatmemory_session_key",
    "q=kettle": "chatmemory_session_title",
    "q=user:7": "removed_scope",
    "": "last_active_day",
}
"""For each query of the list, (a part of) the name of an index that its plan uses."""


@pytest.fixture
def many():
    """Store enough rows that an index costs less than others."""
    sessions = Session.objects.bulk_create(
        Session(scope="server", key=f"k{n}", title=f"t{n}", created_at=now() - n * DAY)
        for n in range(500)
    )
    Turn.objects.bulk_create(
        Turn(session=one, client_id=f"c{n}", status="complete", epoch=one.epoch, user_seq=1)
        for one in sessions
        for n in range(4)
    )
    SessionTag.objects.bulk_create(SessionTag(session=one, tag="common") for one in sessions)
    Feedback.objects.bulk_create(
        Feedback(session=one, turn="c0", user_seq=1, value=1, changed_at=now() - n * DAY)
        for n, one in enumerate(sessions)
    )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE chatmemory_session, chatmemory_turn, chatmemory_sessiontag")
        cursor.execute("ANALYZE chatmemory_feedback")
        cursor.execute("SET LOCAL enable_seqscan = off")


def plan_of(client, query):
    """Return the plan of the statement that reads the rows of the list."""
    given = dict(part.split("=") for part in query.split("&") if part)
    with CaptureQueriesContext(connection) as queries:
        change_list(client, **given)
    [rows] = [q["sql"] for q in queries if "ORDER BY" in q["sql"] and "LIMIT 51" in q["sql"]]
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (FORMAT JSON) {rows}")
        [(plan,)] = cursor.fetchall()
    return plan if isinstance(plan, str) else json.dumps(plan)


@pytest.mark.slow
@pytest.mark.skipif(connection.vendor != "postgresql", reason="only for PostgreSQL")
def test_each_query_of_the_list_has_an_index(admin, many):
    plans = {query: plan_of(admin, query) for query in INDEXES}
    assert {q: plan for q, plan in plans.items() if INDEXES[q] not in plan} == {}
    assert {q: plan for q, plan in plans.items() if "Seq Scan" in plan} == {}


@pytest.mark.slow
@pytest.mark.skipif(connection.vendor != "postgresql", reason="only for PostgreSQL")
def test_a_filter_by_time_reads_only_that_range_of_the_index(admin, many):
    for query, column in (
        ("turns=failed_day", "ended_at"),
        ("error=blocked", "ended_at"),
        ("feedback=bad", "changed_at"),
    ):
        conditions = re.findall('"Index Cond": "(.*?)",', plan_of(admin, query))
        assert [one for one in conditions if f"({column} >=" in one], query


def test_the_turns_of_a_filter_are_read_before_the_sessions(admin):
    """Not for each session of the last days: 776 ms instead of 59 at 2.5 million turns."""
    with CaptureQueriesContext(connection) as queries:
        change_list(admin, turns="failed_week")
    [rows] = [q["sql"] for q in queries if "ORDER BY" in q["sql"] and "LIMIT 51" in q["sql"]]
    assert "IN (SELECT DISTINCT" in rows


def test_each_filter_has_its_index_in_the_table():
    named = {query.split("=")[0] for query in INDEXES}
    not_indexed = {"scope_kind", "length", "metadata"}
    assert {one.parameter_name for one in FILTERS} - not_indexed <= named


@pytest.fixture
def teams(settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "METADATA_FILTERS": ["team"]}
    for key, team in (("a", "gold"), ("b", "silver")):
        make_session(key, metadata={"team": team, "secret": team}, last_message_at=now())


@pytest.mark.slow
def test_the_list_is_filtered_by_a_registered_key_of_the_metadata(teams, admin):
    assert keys(admin, metadata="team:gold") == ["a"]
    assert keys(admin, metadata="secret:gold") == keys(admin, metadata="gold") == []
    assert "metadata, as key:text" in admin.get(LIST).content.decode()


@pytest.mark.slow
def test_the_filter_by_metadata_is_only_for_operators_who_may_read_it(teams, admin, settings):
    assert keys(operator("view_session"), metadata="team:gold") == []
    assert keys(operator("view_session", "view_transcript"), metadata="team:gold") == ["a"]
    settings.CHATMEMORY = {**settings.CHATMEMORY, "TRANSCRIPTS": "masked"}
    assert keys(admin, metadata="team:gold") == []
    assert "metadata, as key:text" not in admin.get(LIST).content.decode()


def test_where_the_host_decides_by_row_the_filter_by_metadata_is_not_offered(
    teams, admin, monkeypatch
):
    class ByRow(SessionAdmin):
        def has_view_transcript_permission(self, request, obj=None):
            return obj is None or obj.key == "b"

    monkeypatch.setattr(site.get_model_admin(Session), "__class__", ByRow)
    assert keys(admin, metadata="team:gold") == []
