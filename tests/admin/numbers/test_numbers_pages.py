"""The dashboard and the page of health: what they show, to whom, and at what cost."""

from __future__ import annotations

import csv
import re
from datetime import UTC, date, datetime, timedelta
from io import StringIO

import pytest
from django.contrib.auth.models import Permission
from django.core.management import get_commands
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from chatmemory import services
from chatmemory.models import DailyActivity, DailyTurns, DatabaseNow, Maintenance, Turn
from chatmemory.services.numbers.due import DAILY
from tests.factories import TALK, make_session, make_user

pytestmark = [pytest.mark.django_db, pytest.mark.database]

NUMBERS = "/admin/chatmemory/dailyturns/"
HEALTH = "/admin/chatmemory/maintenance/"


def today():
    return datetime.now(UTC).date()


def operator(*rights):
    user = make_user(is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=rights))
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def admin():
    return operator("view_numbers", "view_session")


def add_day(day, **columns):
    """Store the turns of a day, each with 100 and 20 tokens, 861 ms and 4,871 ms."""
    turns = columns.pop("turns", 1)
    given = {
        "model": "gpt",
        "status": "complete",
        "error": "",
        "tokens_in": 100 * turns,
        "tokens_out": 20 * turns,
        "first_text": {"861": turns},
        "duration": {"4871": turns},
    }
    return DailyTurns.objects.create(day=day, turns=turns, **{**given, **columns})


@pytest.fixture
def numbers():
    add_day(today(), turns=30)
    add_day(today(), turns=10, status="failed", error="model_timeout")
    add_day(today() - timedelta(days=6), turns=5, model="other")
    add_day(today() - timedelta(days=7), turns=500)
    DailyActivity.objects.create(day=today(), sessions=4, messages=2_000, good=3, bad=1)


def text_of(answer):
    """Return the text of a page without its tags."""
    assert answer.status_code == 200
    page = answer.content.decode()
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page[page.index('id="content"') :]))


def csv_of(client, table, query="days=7"):
    answer = client.get(f"{NUMBERS}{table}.csv?{query}")
    assert answer.status_code == 200
    assert answer["Content-Type"] == "text/csv; charset=utf-8"
    return list(csv.reader(StringIO(answer.content.decode())))


def test_a_period_shows_its_sums(admin, numbers):
    page = text_of(admin.get(NUMBERS, {"days": 7}))
    for text in (
        "Sessions created 4",
        "Messages stored 2,000",
        "Turns 45 22.2 % failed",
        "Tokens 5,400",
        "model_timeout 10",
        "gpt 40 4,000 800 939 ms 939 ms",
        "other 5 500 100",
    ):
        assert text in page
    assert "Turns 545" in text_of(admin.get(NUMBERS, {"days": 30}))


@pytest.mark.parametrize(
    ("query", "days", "last"),
    [
        ("", 30, None),
        ("days=7", 7, None),
        ("days=90", 90, None),
        ("days=8", 30, None),
        ("days=x", 30, None),
        ("first=2026-01-01&last=2026-01-01", 1, date(2026, 1, 1)),
    ],
)
def test_the_query_selects_the_period(admin, query, days, last):
    begin = today()
    page = admin.get(f"{NUMBERS}?{query}")
    period = page.context["period"]
    assert period.last == last or begin <= period.last <= today()
    assert (period.last - period.first).days + 1 == days
    assert len(page.context["charts"][0].table.rows) == days


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("first=2026-01-02&last=2026-01-01", "order"),
        ("first=2025-01-01&last=2026-01-02", "too_long"),
        ("first=2026-01-32&last=2026-01-02", "invalid"),
        ("last=2026-01-02", "required"),
        ("first=0001-01-01&last=9999-12-31", "too_long"),
    ],
)
def test_a_wrong_period_is_named_and_the_default_shown(admin, query, code):
    page = admin.get(f"{NUMBERS}?{query}")
    assert page.status_code == 200
    [[error]] = page.context["form"].errors.as_data().values()
    assert error.code == code
    assert str(next(iter(error.messages))) in text_of(page)
    assert page.context["period"].days == 30


def test_a_page_without_numbers_names_the_command(admin):
    page = text_of(admin.get(NUMBERS))
    assert "There are no numbers yet: run chatmemory_numbers." in page
    services.roll_up_numbers()
    assert "Numbers up to" in text_of(admin.get(NUMBERS))
    Maintenance.objects.update(succeeded_at=DatabaseNow() - DAILY - timedelta(minutes=1))
    assert "They are more than a day old" in text_of(admin.get(NUMBERS))


@pytest.mark.slow
def test_each_table_is_a_file(admin, numbers):
    assert csv_of(admin, "turns")[-1] == [today().isoformat(), "30", "0", "0", "10"]
    assert csv_of(admin, "messages")[-1] == [today().isoformat(), "2000"]
    assert csv_of(admin, "first-text")[-1] == [today().isoformat(), "939", "939"]
    assert csv_of(admin, "models")[0][4] == "First text, median (ms)"
    assert csv_of(admin, "failures") == [["Code", "Turns"], ["model_timeout", "10"]]
    page = admin.get(NUMBERS, {"days": 7}).content.decode()
    names = re.findall(r'href="[^"]*/dailyturns/([a-z-]+)\.csv\?days=7"', page)
    assert len(names) == len(set(names)) == 11
    for name in names:
        assert csv_of(admin, name)
    assert admin.get(f"{NUMBERS}unknown.csv").status_code == 404


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@sum", "\tx", "\rx"])
def test_a_file_contains_no_formula(admin, text):
    add_day(today(), model=text)
    assert csv_of(admin, "models")[1][0] == f"'{text}"


def test_a_file_is_not_masked_by_the_page(admin):
    """The page shows invisible characters; the file has the stored ones."""
    add_day(today(), model="gpt\u202e<b>")
    assert "gpt⟦U+202E⟧&lt;b&gt;" in admin.get(NUMBERS).content.decode()
    assert csv_of(admin, "models")[1][0] == "gpt\u202e<b>"


def talk_of(name, messages):
    session = make_session(f"{name} talk", owner=make_user(name), last_seq=messages)
    session.tokens = 10 * messages
    session.save()
    return session


def test_the_busiest_owners_come_first(admin):
    talk_of("ann", 3)
    talk_of("bob", 5)
    make_session("other", last_seq=4)
    old = talk_of("carl", 9)
    old.last_active_day = today() - timedelta(days=60)
    old.save()
    services.purge_session(
        session_key="dora talk", scope=talk_of("dora", 7).scope, by=TALK["by"], reason="x"
    )
    expected = [["bob", "1", "5", "50"], ["server", "1", "4", "0"], ["ann", "1", "3", "30"]]
    assert csv_of(admin, "owners")[1:] == expected
    assert "bob 1 5 50" in text_of(admin.get(NUMBERS))


def test_owners_are_those_whom_the_operator_may_see(admin, settings):
    talk_of("ann", 3)
    talk_of("bob", 5)
    alone = operator("view_numbers")
    assert alone.get(f"{NUMBERS}owners.csv").status_code == 404
    assert "Busiest owners" not in text_of(alone.get(NUMBERS))
    settings.ROOT_URLCONF = "tests.scoped_admin"
    assert [row[0] for row in csv_of(admin, "owners")[1:]] == ["ann"]
    assert "bob" not in text_of(admin.get(NUMBERS))


def test_the_index_links_both_pages(admin):
    page = admin.get("/admin/").content.decode()
    assert all(f'href="{address}"' in page for address in (NUMBERS, HEALTH))
    page = operator("view_session").get("/admin/").content.decode()
    assert not any(f'href="{address}"' in page for address in (NUMBERS, HEALTH))


def test_each_address_of_a_second_site_leads_to_that_site(admin, settings):
    settings.ROOT_URLCONF = "tests.two_admins"
    for address in ("/ops/chatmemory/dailyturns/", "/ops/chatmemory/maintenance/"):
        page = admin.get(address)
        assert page.status_code == 200
        assert '"/admin/' not in page.content.decode()


@pytest.mark.parametrize("address", [NUMBERS, HEALTH])
def test_a_page_needs_no_inline_style_or_script(admin, numbers, address):
    page = admin.get(address).content.decode()
    own = page[page.index('id="content"') :]
    assert not re.findall(r"<script|<style|\sstyle=|\son\w+=", own)
    assert not re.findall(r"<script(?![^>]*\ssrc=)[^>]*>", page)


def test_charts_have_texts_for_readers_of_the_screen(admin, numbers):
    page = admin.get(NUMBERS, {"days": 7}).content.decode()
    charts = re.findall(r'<svg class="chatmemory-plot".*?</svg>', page, re.DOTALL)
    assert len(charts) == 6
    for chart in charts:
        named = re.search(r'aria-labelledby="([\w-]+)" aria-describedby="([\w-]+)"', chart)
        assert f'<title id="{named[1]}">' in chart
        assert f'<desc id="{named[2]}">' in chart
    ids = re.findall(r'\sid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert page.count("<details><summary>As a table") == 6


def test_numbers_in_shapes_are_not_localized(admin, numbers, settings):
    settings.LANGUAGE_CODE, settings.USE_THOUSAND_SEPARATOR = "de", True
    DailyActivity.objects.create(day=today() - timedelta(days=1), messages=123_457)
    page = admin.get(NUMBERS, {"days": 7}).content.decode()
    charts = "".join(re.findall(r'<svg class="chatmemory-plot".*?</svg>', page, re.DOTALL))
    shapes = re.findall(r' (?:x|y|width|height|d)="([^"]*)"', charts)
    assert len(shapes) > 20
    assert all(re.fullmatch(r"[\d.MLHh -]+", shape) for shape in shapes)
    assert "123.457" in page


def test_pages_cost_few_statements(admin, numbers):
    services.roll_up_numbers()
    # One of the statements compares the tables: each process needs it once a minute.
    for address, most in ((NUMBERS, 13), (HEALTH, 9), (f"{NUMBERS}models.csv", 7)):
        with CaptureQueriesContext(connection) as queries:
            assert admin.get(address, {"days": 90}).status_code == 200
        assert len(queries) <= most, [query["sql"] for query in queries]


INDEXES = {
    "chatmemory_dailyturns": "chatmemory_dailyturns_key",
    "chatmemory_dailyactivity": "chatmemory_dailyactivity_day",
    "chatmemory_session": "chatmemory_session_last_active_day",
    "chatmemory_turn": "chatmemory_turn_live",
}


@pytest.mark.django_db(transaction=True)
def test_each_statement_on_a_growing_table_uses_its_index(admin, numbers, postgresql):
    for number in range(20):
        make_session(f"s{number}")
    with CaptureQueriesContext(connection) as queries:
        admin.get(NUMBERS, {"days": 90})
    checked = set()
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
        cursor.execute("SET enable_seqscan = off")
        cursor.execute("SET enable_sort = off")
        for query in queries:
            for table, index in INDEXES.items():
                if f'FROM "{table}"' in query["sql"]:
                    cursor.execute(f"EXPLAIN {query['sql']}")
                    plan = str(cursor.fetchall())
                    assert index in plan, plan
                    checked.add(table)
        cursor.execute("RESET ALL")
    assert checked == set(INDEXES)


def facts(client):
    page = client.get(HEALTH)
    return page, {fact.label: fact for fact in page.context["facts"]}


def test_health_states_what_works(admin):
    make_session()
    services.admit_turn(**TALK, client_id="c1", content="hi")
    page, found = facts(admin)
    assert "The app works." in text_of(page)
    assert not any(fact.is_bad for fact in found.values() if fact.label != "Daily numbers up to")
    assert found["Turns that wait now"].value.startswith("1, the oldest for ")
    assert (found["Turns that run now"].value, found["Stuck turns that wait"].value) == ("0", "0")


def test_health_marks_what_does_not_work(admin, settings):
    make_session()
    services.admit_turn(**TALK, client_id="c1", content="hi")
    Turn.objects.update(created_at=DatabaseNow() - timedelta(minutes=2))
    page, found = facts(admin)
    assert "The app does not work as it should." in text_of(page)
    assert (found["Stuck turns that wait"].value, found["Stuck turns that wait"].is_bad) == (
        "1",
        True,
    )
    assert Client().get("/api/health/").status_code == 503


def tasks(client):
    """Return the state of each task, and which are marked."""
    table = client.get(HEALTH).context["table"]
    marked = [row[1] for index, row in enumerate(table.rows) if index in table.marked]
    return {str(row[0]): row[1] for row in table.rows}, marked


def test_health_names_the_command_of_each_task(admin):
    rows = admin.get(HEALTH).context["table"].rows
    assert [len(rows), {row[-1] for row in rows} - get_commands().keys()] == [6, set()]


@pytest.mark.slow
def test_health_states_which_maintenance_is_due(admin):
    assert set(tasks(admin)[0].values()) == {"never ran"}
    services.expire_sessions()
    services.vacuum()
    list(services.verify_audit())
    Maintenance.objects.filter(name="expire").update(
        succeeded_at=DatabaseNow() - DAILY - timedelta(minutes=1)
    )
    Maintenance.objects.filter(name="vacuum").update(is_ok=False)
    Maintenance.objects.filter(name="verify").update(ended_at=None, is_ok=None)
    states, marked = tasks(admin)
    assert states == {
        "expire": "due",
        "vacuum": "ended with problems",
        "verify the audit": "runs, or its process died",
        "seal the audit": "never ran",
        "daily numbers": "good",
        "check the integrity": "never ran",
    }
    assert len(marked) == 4
    assert "Maintenance is due, or ended with problems." in text_of(admin.get(HEALTH))
    services.seal_audit()
    list(services.check_integrity())
    services.expire_sessions()
    services.vacuum()
    assert tasks(admin)[1] == []
    assert "Maintenance is due" not in text_of(admin.get(HEALTH))


def test_storage_names_tables_or_the_file(admin):
    services.roll_up_numbers()
    tables = [row[0] for row in csv_of(admin, "storage")[1:]]
    if connection.vendor == "sqlite":
        assert tables == ["database"]
    else:
        assert {"chatmemory_session", "chatmemory_message", "chatmemory_turn"} < set(tables)
    assert all(int(row[1]) > 0 for row in csv_of(admin, "storage")[1:])
