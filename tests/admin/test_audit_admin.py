"""The audit in the admin: filters, search, the CSV file, the verification."""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime

import pytest
from django.contrib.auth.models import Permission
from django.test import Client

from chatmemory import services
from chatmemory.models import AuditEntry, AuditSeal
from chatmemory.services import Actor
from tests.factories import make_session, make_user

pytestmark = pytest.mark.django_db

LIST = "/admin/chatmemory/auditentry/"


@pytest.fixture
def admin():
    user = make_user(is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=["view_audit"]))
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def entries():
    """Return entries of three actors about two persons, by a short name."""
    olga, ann, bob = (make_user(name) for name in ("olga", "ann", "bob"))
    acts = {
        "hold": (services.hold_session, Actor.operator(olga), ann, "dispute of May"),
        "archive": (services.archive_session, Actor.command("x", "Jan"), ann, "done"),
        "release": (services.release_session, Actor.server("cron"), bob, "=1+1"),
    }
    found = {}
    for name, (service, by, owner, reason) in acts.items():
        session = make_session(name, owner=owner)
        if name == "release":
            address = {"session_key": name, "scope": session.scope}
            services.hold_session(**address, by=by, reason="before")
        found[name] = service(session_key=name, scope=session.scope, by=by, reason=reason)
    return found


def listed(client, **query):
    answer = client.get(LIST, query)
    assert answer.status_code == 200
    return [entry.reason for entry in answer.context["cl"].result_list]


def test_filters_select_by_actor_session_person_and_action(admin, entries):
    hold = entries["hold"]
    assert listed(admin, by="olga") == ["dispute of May"]
    assert listed(admin, by="Jan") == ["done"]
    assert listed(admin, by="cron") == ["=1+1", "before"]
    assert listed(admin, session_pk=hold.session_pk) == ["dispute of May"]
    assert listed(admin, action_is="archive") == ["done"]
    ann = make_session("another", owner=make_user("carl"))
    services.erase_person(by=Actor.server("t"), scope=ann.scope, reason="GDPR")
    assert listed(admin, person=ann.scope) == ["GDPR"] * 2  # begun, and the receipt
    assert len(listed(admin, by="cron", action_is="hold")) == 1


@pytest.mark.parametrize(
    "query",
    [
        {"by": "nobody"},
        {"session_pk": "x"},
        {"session_pk": "9" * 40},
        {"session_pk": "²"},
        {"person": "ann"},
        {"person": "removed:1"},
        {"from": "yesterday"},
        {"from": "2026-02-31"},
        {"until": "9999-12-31"},
        {"by": "x\0y"},
    ],
)
def test_a_text_without_a_meaning_selects_nothing(admin, entries, query):
    assert listed(admin, **query) == []


def test_days_include_the_first_and_the_last_one(admin, entries):
    for day, entry in enumerate(entries.values(), start=1):
        at = datetime(2026, 5, day, 23, 59, tzinfo=UTC)
        AuditEntry.objects.filter(pk=entry.pk).update(created_at=at)
    assert set(listed(admin, **{"from": "2026-05-01", "until": "2026-05-02"})) == {
        "dispute of May",
        "done",
    }
    assert listed(admin, until="2026-05-01") == ["dispute of May"]


def test_a_form_keeps_the_other_filters(admin, entries):
    page = admin.get(LIST, {"by": "olga", "action_is": "hold", "q": "may"}).content.decode()
    assert '<input type="hidden" name="action_is" value="hold">' in page
    assert '<input type="hidden" name="q" value="may">' in page
    assert page.count('name="by" value="olga"') == 6  # five hidden ones, and the input


def test_reasons_are_searched_among_the_newest_or_between_days(admin, entries, monkeypatch):
    assert listed(admin, q="DISPUTE") == ["dispute of May"]
    monkeypatch.setattr("chatmemory.admin.audit.model_admin.SEARCHED_ENTRIES", 2)
    assert listed(admin, q="dispute") == []
    assert listed(admin, **{"q": "dispute", "from": "2020-01-01"}) == ["dispute of May"]


def test_the_csv_file_has_the_filtered_entries_and_no_formula(admin, entries):
    answer = admin.get(f"{LIST}csv/", {"by": "cron"})
    assert answer["Content-Disposition"] == 'attachment; filename="audit.csv"'
    rows = list(csv.DictReader(io.StringIO(answer.getvalue().decode("utf-8-sig"))))
    assert [row["reason"] for row in rows] == ["'=1+1", "before"]
    assert rows[0]["action"] == "release"
    assert rows[0]["actor"] == "cron (server)"


def test_the_page_verifies_and_shows_the_head(admin, entries):
    page = admin.get(f"{LIST}verify/")
    assert "No entry is sealed." in page.content.decode()
    services.seal_audit()
    verified = admin.post(f"{LIST}verify/")
    head = services.audit_state().head
    assert head in verified.content.decode()
    assert "Verified: no entry was changed or deleted." in verified.content.decode()
    AuditEntry.objects.filter(pk=entries["hold"].pk).update(reason="nothing")
    changed = admin.post(f"{LIST}verify/")
    assert len(changed.context["findings"]) == 1
    assert "Verified:" not in changed.content.decode()


def test_a_cut_end_is_found_with_an_earlier_head(admin, entries):
    services.seal_audit()
    head = services.audit_state().head
    last = AuditSeal.objects.order_by("-number").first()
    AuditEntry.objects.filter(pk=last.entry_pk).delete()
    last.delete()
    assert admin.post(f"{LIST}verify/").context["findings"] == []
    assert len(admin.post(f"{LIST}verify/", {"head": head}).context["findings"]) == 1
    wrong = admin.post(f"{LIST}verify/", {"head": "x"})
    assert wrong.context["findings"] is None
    assert "errornote" in wrong.content.decode()


def test_a_long_audit_is_verified_by_the_command(admin, entries, monkeypatch):
    monkeypatch.setattr("chatmemory.admin.audit.pages.MAX_VERIFIED", 3)
    answer = admin.post(f"{LIST}verify/")
    assert answer.context["findings"] is None
    assert "chatmemory_audit_verify" in answer.content.decode()
