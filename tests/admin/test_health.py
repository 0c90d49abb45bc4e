"""The page of health: what it shows, to whom, and at what cost."""

from __future__ import annotations

import csv
import re
from datetime import datetime, timedelta
from io import StringIO

import pytest
from django.core.management import get_commands
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from chatmemory import services
from chatmemory.admin.reports.tables import shown
from chatmemory.models import DatabaseNow, Maintenance, Turn
from chatmemory.search.indexing import index_all
from chatmemory.services.audit.seals import seal_audit, verify_audit
from chatmemory.services.integrity.sessions import check_integrity
from chatmemory.services.maintenance.tasks import TOLERANCE
from chatmemory.services.removal.vacuum import vacuum
from chatmemory.services.retention.retention import expire_sessions
from tests.admin.visits import operator
from tests.factories import TALK, make_session

pytestmark = [pytest.mark.django_db, pytest.mark.database]

HEALTH = "/admin/chatmemory/maintenance/"


@pytest.fixture
def admin():
    return operator("view_health")


def text_of(answer):
    """Return the text of a page without its tags."""
    assert answer.status_code == 200
    page = answer.content.decode()
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page[page.index('id="content"') :]))


def facts(client):
    page = client.get(HEALTH)
    return page, {fact.label: fact for fact in page.context["facts"]}


def test_health_states_what_works(admin):
    make_session()
    services.admit_turn(**TALK, client_id="c1", content="hi")
    page, found = facts(admin)
    assert "The app works." in text_of(page)
    assert not any(fact.is_bad for fact in found.values() if fact.label != "Daily figures up to")
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
    table = client.get(HEALTH).context["tables"][0]
    marked = [row[1] for index, row in enumerate(table.rows) if index in table.marked]
    return {str(row[0]): row[1] for row in table.rows}, marked


def test_health_names_the_command_of_each_task(admin):
    rows = admin.get(HEALTH).context["tables"][0].rows
    assert [len(rows), {row[-1] for row in rows} - get_commands().keys()] == [7, set()]


@pytest.mark.slow
def test_health_states_which_maintenance_is_overdue(admin):
    assert set(tasks(admin)[0].values()) == {"never ran"}
    expire_sessions()
    vacuum()
    list(verify_audit())
    Maintenance.objects.filter(name="expire").update(
        succeeded_at=DatabaseNow() - timedelta(days=1) - TOLERANCE - timedelta(minutes=1)
    )
    Maintenance.objects.filter(name="vacuum").update(is_ok=False)
    Maintenance.objects.filter(name="verify").update(ended_at=None, is_ok=None)
    states, marked = tasks(admin)
    assert states == {
        "expire": "overdue",
        "vacuum": "ended with problems",
        "verify the audit": "runs, or its process died",
        "seal the audit": "never ran",
        "search index": "never ran",
        "daily figures": "good",
        "check the integrity": "never ran",
    }
    assert len(marked) == 5
    assert "Maintenance is overdue, or ended with problems." in text_of(admin.get(HEALTH))
    seal_audit()
    index_all()
    list(check_integrity())
    expire_sessions()
    vacuum()
    assert tasks(admin)[1] == []
    assert "Maintenance is overdue" not in text_of(admin.get(HEALTH))


def csv_of(client, table):
    answer = client.get(f"{HEALTH}{table}.csv")
    assert (answer.status_code, answer["Content-Type"]) == (200, "text/csv; charset=utf-8")
    assert answer["Content-Disposition"] == f'attachment; filename="{table}.csv"'
    return list(csv.reader(StringIO(answer.content.decode())))


def test_storage_names_tables_or_the_file(admin):
    rows = csv_of(admin, "storage")[1:]
    tables = [row[0] for row in rows]
    if connection.vendor == "sqlite":
        assert tables == ["database"]
    else:
        of_core = {"chatmemory_session", "chatmemory_message", "chatmemory_turn"}
        assert of_core | {"chatmemory_statistics_dailyturns"} < set(tables)
    assert all(int(row[1]) > 0 for row in rows)


def test_each_table_is_a_file(admin):
    page = admin.get(HEALTH).content.decode()
    names = re.findall(r'href="[^"]*/maintenance/([a-z-]+)\.csv"', page)
    assert names == ["maintenance", "storage"]
    assert [len(csv_of(admin, name)) > 1 for name in names] == [True, True]
    assert admin.get(f"{HEALTH}unknown.csv").status_code == 404


def test_the_index_links_the_page(admin):
    link = f'href="{HEALTH}"'
    pages = [
        one.get("/admin/").content.decode()
        for one in (admin, operator("view_session", name="other"))
    ]
    assert [link in page for page in pages] == [True, False]


def test_each_address_of_a_second_site_leads_to_that_site(admin, settings):
    settings.ROOT_URLCONF = "tests.two_admins"
    page = admin.get("/ops/chatmemory/maintenance/")
    assert page.status_code == 200
    assert '"/admin/' not in page.content.decode()


def test_the_page_needs_no_inline_style_or_script(admin):
    page = admin.get(HEALTH).content.decode()
    own = page[page.index('id="content"') :]
    assert not re.findall(r"<script|<style|\sstyle=|\son\w+=", own)
    assert not re.findall(r"<script(?![^>]*\ssrc=)[^>]*>", page)


def test_the_page_costs_few_statements(admin):
    # One of the statements compares the tables: each process needs it once a minute.
    with CaptureQueriesContext(connection) as queries:
        assert admin.get(HEALTH).status_code == 200
    # With one of the search app; it has two more if there are sessions.
    assert len(queries) <= 12, [query["sql"] for query in queries]


def test_a_time_without_a_zone_is_shown_and_breaks_no_page():
    assert "2026" in shown(datetime(2026, 5, 4, 12))  # noqa: DTZ001  # as a fact of a host may be
