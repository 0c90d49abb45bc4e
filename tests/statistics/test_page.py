"""The page of statistics: what it shows, to whom, and at what cost."""

from __future__ import annotations

import csv
import re
from datetime import UTC, date, datetime, timedelta
from io import StringIO

import pytest
from django.contrib.auth.models import Permission
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from chatmemory import services
from chatmemory.models import DatabaseNow, Maintenance
from chatmemory.services.maintenance.tasks import TOLERANCE
from chatmemory.statistics.models import DailyActivity, DailyTurns
from chatmemory.statistics.roll_up import roll_up_statistics
from tests.factories import TALK, make_session, make_user

pytestmark = [pytest.mark.django_db, pytest.mark.database]

PAGE = "/admin/chatmemory_statistics/dailyturns/"


DUE = timedelta(days=1) + TOLERANCE
"""The time after a run until the next one is due."""


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
    return operator("view_statistics", "view_session")


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
def figures():
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
    answer = client.get(f"{PAGE}{table}.csv?{query}")
    assert answer.status_code == 200
    assert answer["Content-Type"] == "text/csv; charset=utf-8"
    return list(csv.reader(StringIO(answer.content.decode())))


def test_a_period_shows_its_sums(admin, figures):
    page = text_of(admin.get(PAGE, {"days": 7}))
    for text in (
        "Conversations created 4",
        "Messages stored 2,000",
        "Turns 45 22.2 % failed",
        "Tokens 5,400",
        "model_timeout 10",
        "gpt 40 4,000 800 939 ms 939 ms",
        "other 5 500 100",
    ):
        assert text in page
    assert "Turns 545" in text_of(admin.get(PAGE, {"days": 30}))


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
    page = admin.get(f"{PAGE}?{query}")
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
    page = admin.get(f"{PAGE}?{query}")
    assert page.status_code == 200
    [[error]] = page.context["form"].errors.as_data().values()
    assert error.code == code
    assert str(next(iter(error.messages))) in text_of(page)
    assert page.context["period"].days == 30


@pytest.mark.slow
def test_a_page_without_figures_names_the_command(admin):
    page = text_of(admin.get(PAGE))
    assert "There are no figures yet: run chatmemory_statistics." in page
    roll_up_statistics()
    assert "Figures up to" in text_of(admin.get(PAGE))
    Maintenance.objects.update(succeeded_at=DatabaseNow() - DUE - timedelta(minutes=1))
    assert "They are more than a day old" in text_of(admin.get(PAGE))


@pytest.mark.slow
def test_each_table_is_a_file(admin, figures):
    assert csv_of(admin, "turns")[-1] == [today().isoformat(), "30", "0", "0", "10"]
    assert csv_of(admin, "messages")[-1] == [today().isoformat(), "2000"]
    assert csv_of(admin, "first-text")[-1] == [today().isoformat(), "939", "939"]
    assert csv_of(admin, "models")[0][4] == "First text, median (ms)"
    assert csv_of(admin, "failures") == [["Code", "Turns"], ["model_timeout", "10"]]
    page = admin.get(PAGE, {"days": 7}).content.decode()
    names = re.findall(r'href="[^"]*/dailyturns/([a-z-]+)\.csv\?days=7"', page)
    assert len(names) == len(set(names)) == 9
    for name in names:
        assert csv_of(admin, name)
    assert admin.get(f"{PAGE}unknown.csv").status_code == 404


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@sum", "\tx", "\rx"])
def test_a_file_contains_no_formula(admin, text):
    add_day(today(), model=text)
    assert csv_of(admin, "models")[1][0] == f"'{text}"


def test_a_file_is_not_masked_by_the_page(admin):
    """The page shows invisible characters; the file has the stored ones."""
    add_day(today(), model="gpt\u202e<b>")
    assert "gpt⟦U+202E⟧&lt;b&gt;" in admin.get(PAGE).content.decode()
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
    assert "bob 1 5 50" in text_of(admin.get(PAGE))


def test_owners_are_those_whom_the_operator_may_see(admin, settings):
    talk_of("ann", 3)
    talk_of("bob", 5)
    alone = operator("view_statistics")
    assert alone.get(f"{PAGE}owners.csv").status_code == 404
    assert "Busiest owners" not in text_of(alone.get(PAGE))
    settings.ROOT_URLCONF = "tests.scoped_admin"
    assert [row[0] for row in csv_of(admin, "owners")[1:]] == ["ann"]
    assert "bob" not in text_of(admin.get(PAGE))


def test_the_bar_of_sections_links_the_page(admin):
    jobs = "/admin/chatmemory/job/"
    assert f'href="{PAGE}"' in admin.get(jobs).content.decode()
    other = operator("view_session", "view_health")
    assert "chatmemory_statistics" not in other.get(jobs).content.decode()


def test_the_page_links_health_to_those_who_may_see_it(admin):
    link = 'href="/admin/chatmemory/maintenance/"'
    both = operator("view_statistics", "view_health")
    assert [link in one.get(PAGE).content.decode() for one in (admin, both)] == [False, True]


def test_each_address_of_a_second_site_leads_to_that_site(admin, settings):
    settings.ROOT_URLCONF = "tests.two_admins"
    page = admin.get("/ops/chatmemory_statistics/dailyturns/")
    assert page.status_code == 200
    assert '"/admin/' not in page.content.decode()


def test_the_page_needs_no_inline_style_or_script(admin, figures):
    page = admin.get(PAGE).content.decode()
    own = page[page.index('id="content"') :]
    assert not re.findall(r"<script|<style|\sstyle=|\son\w+=", own)
    assert not re.findall(r"<script(?![^>]*\ssrc=)[^>]*>", page)


def test_charts_have_texts_for_readers_of_the_screen(admin, figures):
    page = admin.get(PAGE, {"days": 7}).content.decode()
    charts = re.findall(r'<svg class="chatmemory-plot".*?</svg>', page, re.DOTALL)
    assert len(charts) == 6
    for chart in charts:
        named = re.search(r'aria-labelledby="([\w-]+)" aria-describedby="([\w-]+)"', chart)
        assert f'<title id="{named[1]}">' in chart
        assert f'<desc id="{named[2]}">' in chart
    ids = re.findall(r'\sid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert page.count("<details><summary>As a table") == 6


def test_numbers_in_shapes_are_not_localized(admin, figures, settings):
    settings.LANGUAGE_CODE, settings.USE_THOUSAND_SEPARATOR = "de", True
    DailyActivity.objects.create(day=today() - timedelta(days=1), messages=123_457)
    page = admin.get(PAGE, {"days": 7}).content.decode()
    charts = "".join(re.findall(r'<svg class="chatmemory-plot".*?</svg>', page, re.DOTALL))
    shapes = re.findall(r' (?:x|y|width|height|d)="([^"]*)"', charts)
    assert len(shapes) > 20
    assert all(re.fullmatch(r"[\d.MLHh -]+", shape) for shape in shapes)
    assert "123.457" in page


def test_pages_cost_few_statements(admin, figures):
    roll_up_statistics()
    for address, most in ((PAGE, 9), (f"{PAGE}models.csv", 7)):
        with CaptureQueriesContext(connection) as queries:
            assert admin.get(address, {"days": 90}).status_code == 200
        assert len(queries) <= most, [query["sql"] for query in queries]


INDEXES = {
    "chatmemory_statistics_dailyturns": "chatmemory_statistics_dailyturns_key",
    "chatmemory_statistics_dailyactivity": "chatmemory_statistics_dailyactivity_day",
    "chatmemory_session": "chatmemory_session_last_active_day",
}


@pytest.mark.django_db(transaction=True)
def test_each_statement_on_a_growing_table_uses_its_index(admin, figures, postgresql):
    for number in range(20):
        make_session(f"s{number}")
    with CaptureQueriesContext(connection) as queries:
        admin.get(PAGE, {"days": 90})
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
