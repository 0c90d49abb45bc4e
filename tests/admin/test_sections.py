"""The bar of sections, what the index of the admin lists, and times in templates."""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.admin import AdminSite, ModelAdmin
from django.test import RequestFactory, override_settings

from chatmemory.admin import SessionAdmin, sections
from chatmemory.admin.text import ago
from chatmemory.models import Session
from tests.admin.visits import JOBS, LIST, operator

APP = "/admin/chatmemory/"
STATISTICS = "/admin/chatmemory_statistics/dailyturns/"
ALL = (
    *("view_session", "view_audit", "view_health", "view_statistics"),
    *("view_transcript", "export_history", "erase_person"),
)
LABELS = ["Conversations", "People", "Jobs", "Statistics", "Audit", "Health"]


def bar_of(answer):
    """Return the labels of the bar, and the current one."""
    page = answer.content.decode()
    nav = re.search(r'<nav class="chatmemory-sections".*?</nav>', page, re.DOTALL)
    if nav is None:
        return [], None
    links = re.findall(r"<a href=\"[^\"]+\"([^>]*)>([^<]+)</a>", nav[0])
    current = [label for attributes, label in links if "aria-current" in attributes]
    return [label for _attributes, label in links], current[0] if current else None


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("address", "current"),
    [
        (LIST, "Conversations"),
        (f"{LIST}?state=purged", "Conversations"),
        (f"{LIST}people/", "People"),
        (f"{LIST}person/?scope=user:7", "People"),
        (JOBS, "Jobs"),
        (STATISTICS, "Statistics"),
        (f"{APP}auditentry/", "Audit"),
        (f"{APP}auditentry/verify/", "Audit"),
        (f"{APP}maintenance/", "Health"),
    ],
)
def test_each_page_has_the_bar_and_marks_its_section(address, current):
    assert bar_of(operator(*ALL).get(address)) == (LABELS, current)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("rights", "address", "shown"),
    [
        (["view_session"], LIST, ["Conversations", "People", "Jobs"]),
        (["view_session", "view_audit"], LIST, ["Conversations", "People", "Jobs", "Audit"]),
        (["view_audit", "view_health"], f"{APP}maintenance/", ["Audit", "Health"]),
        (["view_health"], f"{APP}maintenance/", []),
    ],
)
def test_the_bar_has_what_the_operator_may_see_and_is_not_shown_for_one_section(
    rights, address, shown
):
    labels, _current = bar_of(operator(*rights).get(address))
    assert labels == shown


def listed(client):
    """Return the names of our models in the index of the admin."""
    apps = client.get("/admin/").context["available_apps"]
    ours = [app for app in apps if app["app_label"].startswith("chatmemory")]
    return [model["object_name"] for app in ours for model in app["models"]]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("rights", "expected"),
    [
        (ALL, ["AuditEntry", "Session"]),
        (["view_session"], ["Session"]),
        (["view_audit"], ["AuditEntry"]),
        (["view_health"], ["Maintenance"]),
        (["view_statistics", "view_health"], ["DailyTurns"]),
        ([], []),
    ],
)
def test_the_index_has_the_audit_and_the_first_section_of_the_operator(rights, expected):
    assert listed(operator(*rights)) == expected


@pytest.mark.django_db
def test_a_site_without_a_model_has_no_section_for_it(admin_user):
    site = AdminSite(name="other")
    site.register(Session, SessionAdmin)
    request = RequestFactory().get("/")
    request.user = admin_user
    assert sections.visible_sections(site, request) == [sections.SESSIONS, sections.PEOPLE]


@pytest.mark.django_db
@pytest.mark.parametrize("address", [f"{APP}maintenance/", STATISTICS, f"{APP}auditentry/"])
def test_each_link_above_a_page_leads_to_a_page(address):
    """Django hides an app without a listed model, and so its page."""
    client = operator("view_session", "view_statistics", "view_health", "view_audit")
    page = client.get(address).content.decode()
    crumbs = re.search(r'class="breadcrumbs".*?</(?:div|ol)>', page, re.DOTALL)
    assert crumbs
    links = re.findall(r'href="([^"]+)"', crumbs[0])
    assert {client.get(link).status_code for link in links} == {200}


@pytest.mark.django_db
def test_another_model_admin_of_a_host_has_no_section(admin_user):
    site = AdminSite(name="other")
    site.register(Session, ModelAdmin)
    request = RequestFactory().get("/")
    request.user = admin_user
    assert sections.visible_sections(site, request) == []


def test_a_section_that_is_registered_again_is_shown_once():
    before = sections.sections()
    for section in before[3:-2]:
        sections.register_section(section)
    assert sections.sections() == before


@pytest.mark.parametrize(
    ("age", "text"),
    [
        (timedelta(0), "just now"),
        (timedelta(seconds=61), "61 s ago"),
        (timedelta(minutes=3), "3 min ago"),
        (timedelta(hours=47), "47 h ago"),
        (timedelta(days=6, hours=23), "6 days ago"),
        (timedelta(days=7), None),
        (-timedelta(seconds=30), "just now"),
        (-timedelta(minutes=2), None),
    ],
)
@override_settings(TIME_ZONE="UTC", LANGUAGE_CODE="en-gb")
def test_a_time_is_relative_up_to_a_week(age, text):
    at = datetime.now(UTC) - age
    day = f"{at:%d/%m/%Y}"
    html = ago(at)
    assert re.sub(r"<[^>]*>", "", html) == (text or day)
    assert f'datetime="{at.isoformat()}"' in html


@pytest.mark.slow
def test_the_filters_of_the_templates_do_not_import_the_admin():
    program = (
        "import sys, chatmemory.templatetags.chatmemory_admin;"
        "sys.exit('chatmemory.admin' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False)  # noqa: S603  # our own
    assert done.returncode == 0
