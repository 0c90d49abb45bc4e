"""The audit in the admin: views, names, filters, search, the CSV file, the verification."""

from __future__ import annotations

import csv
import io
import re
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from chatmemory import services
from chatmemory.models import AuditEntry, AuditSeal, Session
from chatmemory.services import Actor
from chatmemory.services.audit.readings import record_reading, record_reveal
from chatmemory.services.audit.seals import audit_state, seal_audit
from tests.admin.visits import operator, shown, talk_of
from tests.factories import BY, make_session, make_user
from tests.scoped_admin import OWNER, ScopedSessionAdmin

pytestmark = pytest.mark.django_db

LIST = "/admin/chatmemory/auditentry/"


@pytest.fixture
def admin():
    return operator("view_audit", name="auditor")


@pytest.fixture
def entries():
    """Return entries of three actors about two persons, by a short name."""
    olga, ann, bob = (make_user(name) for name in ("olga", "ann", "bob"))
    actions = {
        "hold": (services.hold_session, Actor.operator(olga), ann, "dispute of May"),
        "archive": (services.archive_session, Actor.command("x", "Jan"), ann, "done"),
        "release": (services.release_session, Actor.server("cron"), bob, "=1+1"),
    }
    found = {}
    for name, (service, by, owner, reason) in actions.items():
        session = make_session(name, owner=owner)
        if name == "release":
            address = {"session_key": name, "scope": session.scope}
            services.hold_session(**address, by=by, reason="before")
        found[name] = service(session_key=name, scope=session.scope, by=by, reason=reason)
    return found


@pytest.fixture
def readings(entries):
    """Return a reading of each session with an entry."""
    for session in Session.objects.order_by("pk"):
        record_reading(session=session, by=BY, from_seq=1, to_seq=4)
    return [*AuditEntry.objects.filter(action="read")]


def listed(client, **query):
    answer = client.get(LIST, query)
    assert answer.status_code == 200
    return [entry.reason for entry in answer.context["cl"].result_list]


def actions(client, **query):
    return {entry.action for entry in client.get(LIST, query).context["cl"].result_list}


def views(client, **query):
    """Return which views are marked as current, and the address of each."""
    page = client.get(LIST, query).content.decode()
    nav = re.search(r'<nav class="chatmemory-views".*?</nav>', page, re.DOTALL)[0]
    links = re.findall(r'<a href="([^"]*)"([^>]*)>([^<]+)</a>', nav)
    current = [label for _, attributes, label in links if "aria-current" in attributes]
    return current, {label: address.replace("&amp;", "&") for address, _, label in links}


def test_the_list_opens_on_changes_and_has_a_view_of_readings(admin, readings):
    session = Session.objects.first()
    record_reveal(session=session, by=BY, reason="complaint 12")
    where = {"session_key": session.key, "scope": session.scope}
    services.begin_export(**where, by=BY, reason="request 7", format="jsonl")
    admin.get("/admin/chatmemory/session/")  # refused
    changes = {"hold", "archive", "release", "reveal", "export", "refused"}
    assert actions(admin) == actions(admin, action_is="no such") == changes
    assert actions(admin, action_is="read") == {"read"}
    assert actions(admin, action_is="all") == {*changes, "read"}
    assert actions(admin, action_is="hold") == {"hold"}


@pytest.mark.slow
def test_the_views_are_marked_and_keep_the_other_filters(admin, readings):
    pk = readings[0].session_pk
    marks = {"": ["Changes"], "changes": ["Changes"], "read": ["Readings"], "all": ["All"]}
    for view, marked in {**marks, "hold": []}.items():
        current, links = views(admin, action_is=view, session_pk=pk, after="x")
        assert current == marked
        assert sorted(links["Changes"][1:].split("&")) == ["action_is=changes", f"session_pk={pk}"]
        assert links["Readings"] == f"?action_is=read&session_pk={pk}"
    answer = admin.get(f"{LIST}{links['Readings']}")
    assert [*answer.context["cl"].result_list] == [readings[0]]
    hidden = '<input type="hidden" name="action_is" value="read">'
    assert answer.content.decode().count(hidden) == 6, "the search and the filters keep it"
    back = views(admin, action_is="read")[1]["Changes"]
    assert back == "?action_is=changes", "an empty address would be that of the page"


def test_the_filter_marks_what_is_shown(admin, entries):
    for query, label in (("", "Changes"), ("all", "All"), ("hold", "Put on hold")):
        changelist = admin.get(LIST, {"action_is": query}).context["cl"]
        choices = [*changelist.filter_specs[0].choices(changelist)]
        assert [one["display"] for one in choices if one["selected"]] == [label]
        assert [str(one["display"]) for one in choices[:3]] == ["Changes", "All", "Read"]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({}, {"hold", "archive", "release"}),
        ({"action_is": "read"}, {"read"}),
        ({"action_is": "all", "by": "olga"}, {"hold"}),
    ],
)
def test_the_csv_file_has_the_entries_of_the_view(admin, readings, query, found):
    text = admin.get(f"{LIST}csv/", query).getvalue().decode("utf-8-sig")
    assert {row["action"] for row in csv.DictReader(io.StringIO(text))} == found


@pytest.mark.slow
@pytest.mark.skipif(connection.vendor != "postgresql", reason="only for PostgreSQL")
def test_the_changes_among_many_readings_have_an_index(admin):
    AuditEntry.objects.bulk_create(
        AuditEntry(action="hold" if n % 100 == 0 else "read", session_pk=n, mac=str(n))
        for n in range(20_000)
    )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE chatmemory_auditentry")
    older = admin.get(LIST).context["cl"].older_url
    for address in ("", older, f"{older}&action_is=changes"):
        with CaptureQueriesContext(connection) as queries:
            assert admin.get(f"{LIST}{address}").status_code == 200
        own = [q["sql"] for q in queries if "LIMIT" in q["sql"] and "auditentry" in q["sql"]]
        assert len(own) == 2, "the rows and the count"
        for sql in own:
            with connection.cursor() as cursor:
                cursor.execute(f"EXPLAIN {sql}")
                plan = "\n".join(row for (row,) in cursor.fetchall())
            assert "chatmemory_audit_no_reading" in plan
            assert not re.search("Seq Scan|Filter|Sort", plan), plan


TITLE = "a classified title"


@pytest.fixture
def trimmed():
    """Return the entry of a trim, as of 1,500 messages."""
    talk = talk_of(make_user("bob"), *"xxxx", title=TITLE)
    where = {"session_key": talk.key, "scope": talk.scope, "by": Actor.operator(make_user("root"))}
    entry = services.trim_session(**where, keep_last=2, reason="r" * 400)
    AuditEntry.objects.update(to_seq=1_500, counts={"messages": 1_500})
    return entry


def texts(client, entry):
    """Return the list and the page of an entry, with their tags."""
    pages = [client.get(address) for address in (LIST, f"{LIST}{entry.pk}/change/")]
    assert {page.status_code for page in pages} == {200}
    return [page.content.decode() for page in pages]


def test_a_row_says_who_did_what_to_which_conversation_and_when(trimmed):
    AuditEntry.objects.update(created_at=timezone.now() - timedelta(hours=3))
    reader = operator("view_audit", "view_session")
    assert f"3 h ago root operator Trimmed: {TITLE} 1,500 messages r" in shown(reader.get(LIST))
    page = shown(reader.get(f"{LIST}{trimmed.pk}/change/"))
    assert f"root operator Action: Trimmed: {TITLE} 1,500 messages" in page
    assert "3 h ago" not in page
    assert ("1 to 1,500" in page, "trim of conversation" in page) == (True, False)
    link = f'<a href="/admin/chatmemory/session/{trimmed.session_pk}/change/">{TITLE}</a>'
    assert all(link in text for text in texts(reader, trimmed))


def assert_hidden(client, entry):
    for text in texts(client, entry):
        assert TITLE not in text
        assert f"conversation {entry.session_pk}" in text
        assert f"/session/{entry.session_pk}/change/" not in text


def test_an_auditor_without_view_session_sees_no_title_and_no_link(admin, trimmed):
    assert_hidden(admin, trimmed)


def test_a_session_outside_of_the_hosts_queryset_has_no_title_and_no_link(trimmed, settings):
    settings.ROOT_URLCONF = "tests.scoped_admin"
    reader = operator("view_audit", "view_session")
    assert_hidden(reader, trimmed)
    Session.objects.update(owner=make_user(OWNER))
    assert TITLE in shown(reader.get(LIST))


def test_a_session_that_the_host_forbids_has_no_title_and_no_link(trimmed, settings, monkeypatch):
    settings.ROOT_URLCONF = "tests.scoped_admin"
    Session.objects.update(owner=make_user(OWNER))
    monkeypatch.setattr(
        ScopedSessionAdmin, "has_view_permission", lambda self, request, obj=None: obj is None
    )
    assert_hidden(operator("view_audit", "view_session"), trimmed)


@pytest.mark.parametrize("mode", ["masked", "off"])
@pytest.mark.parametrize("title", ["", TITLE])
def test_a_hidden_title_is_hidden_here_too(trimmed, settings, mode, title):
    Session.objects.update(title=title)
    settings.CHATMEMORY = {"TRANSCRIPTS": mode}
    reader = operator("view_audit", "view_session", "view_transcript", "view_unmasked")
    name = "talk" if mode == "off" else "• •••••••••• •••••" if title else "•"
    for text in texts(reader, trimmed):
        assert TITLE not in text
        assert f'/session/{trimmed.session_pk}/change/">{name}</a>' in text


def test_a_deleted_session_is_named_by_its_number(trimmed):
    AuditEntry.objects.update(session_pk=10**9)
    trimmed.refresh_from_db()
    assert_hidden(operator("view_audit", "view_session"), trimmed)


@pytest.mark.slow
def test_the_names_of_a_page_take_two_statements(trimmed):
    def statements(client):
        with CaptureQueriesContext(connection) as queries:
            assert client.get(LIST).status_code == 200
        return len(queries)

    reader = operator("view_audit", "view_session", "view_transcript")
    for n in range(20):
        session = talk_of(make_user(), key=f"s{n}")
        services.archive_session(session_key=f"s{n}", scope=session.scope, by=BY, reason="")
    assert statements(reader) == statements(operator("view_audit", name="other")) + 2


@pytest.mark.slow
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


def test_a_filter_states_what_to_type(admin, entries):
    page = admin.get(LIST).content.decode()
    assert "By conversation ID, such as 17" in page
    assert "By person, such as user:7" in page


@pytest.mark.slow
def test_readings_of_a_person_are_found_until_an_erasure(admin):
    """As docs/howto/audit.md states; docs/howto/erasure.md states that the username stays."""
    carl = make_user("carl")
    session = make_session("another", owner=carl)
    record_reading(session=session, by=BY, from_seq=1, to_seq=1)
    services.clear_session(session_key="another", by=Actor.user(carl), reason="own")
    query = {"person": session.scope, "action_is": "read"}
    assert len(listed(admin, **query)) == 1
    services.erase_person(by=BY, scope=session.scope, reason="GDPR")
    assert listed(admin, **query) == []
    assert AuditEntry.objects.filter(actor_label="carl", actor_id=str(carl.pk)).exists()


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
    seal_audit()
    verified = admin.post(f"{LIST}verify/")
    head = audit_state().head
    assert head in verified.content.decode()
    assert "Verified: no entry was changed or deleted." in verified.content.decode()
    AuditEntry.objects.filter(pk=entries["hold"].pk).update(reason="nothing")
    changed = admin.post(f"{LIST}verify/")
    assert len(changed.context["findings"]) == 1
    assert "Verified:" not in changed.content.decode()


def test_a_cut_end_is_found_with_an_earlier_head(admin, entries):
    seal_audit()
    head = audit_state().head
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
