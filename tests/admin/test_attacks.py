"""Attempts to read or change through the admin what an operator must not."""

from __future__ import annotations

import base64
import csv
import io
import re
from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.admin import site as main_site
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from chatmemory import services
from chatmemory.models import AuditEntry, Job, Session, Turn
from chatmemory.services import Actor
from chatmemory.services.jobs.claims import claim_job
from chatmemory.services.jobs.create import Order, create_job, undo_job
from chatmemory.services.jobs.run import run_slice
from chatmemory.services.turns.recovery import recover_overdue_turn
from chatmemory.statistics.models import DailyTurns
from tests.admin.visits import ACTING, LIST, action_url, job_url, operator, talk_of
from tests.factories import make_session, make_user
from tests.scoped_admin import site as scoped_site

pytestmark = [pytest.mark.django_db, pytest.mark.regression]

SECRET = "classified"
OTHER = Actor.server("other")
AUDIT = "/admin/chatmemory/auditentry/"
TESTS_OF_TEXT = (
    f"title__startswith={SECRET[:2]}",
    f"instructions__contains={SECRET[:2]}",
    f"metadata__word={SECRET}",
    "id__regex=(",
    "pk__regex=(",
    "key=%00",
    "created_at__year=99999",
)
"""Conditions of an address that no filter declares."""


@pytest.fixture
def masked(settings):
    """Return a session of which no operator may read a word."""
    settings.CHATMEMORY = {"TRANSCRIPTS": "masked"}
    return make_session(
        "order-7", title=f"{SECRET} title", instructions=SECRET, metadata={"word": SECRET}
    )


HEADER = "Content-Security-Policy"


@pytest.mark.parametrize("page", [LIST, AUDIT, f"{LIST}people/", "/admin/chatmemory/maintenance/"])
def test_each_page_of_ours_sends_the_policy_of_the_chat_pages(page):
    client = operator("view_session", "view_audit", "view_health", "view_user")
    answer = client.get(page)
    assert answer.status_code == 200
    assert "script-src 'self'" in answer[HEADER]
    assert HEADER not in client.get("/admin/auth/user/")


def test_the_policy_of_the_project_is_not_replaced(settings):
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "tests.admin.test_attacks.CSPMiddleware"]
    assert operator("view_session").get(LIST)[HEADER] == "default-src *"


class CSPMiddleware:
    """Sends a policy unless the answer has one, as those of Django 6 and django-csp do."""

    def __init__(self, get_response):
        self.get_response = get_response

    def __call__(self, request):
        response = self.get_response(request)
        response.headers.setdefault(HEADER, "default-src *")
        return response


@pytest.mark.parametrize("base", ["base", "base_site"])
def test_a_theme_with_its_own_base_template_has_no_policy(settings, base):
    own = {f"admin/{base}.html": "{% block content %}{% endblock %}"}
    loaders = [
        ("django.template.loaders.locmem.Loader", own),
        "django.template.loaders.app_directories.Loader",
    ]
    [engine] = settings.TEMPLATES
    options = {**engine["OPTIONS"], "loaders": loaders}
    settings.TEMPLATES = [{**engine, "APP_DIRS": False, "OPTIONS": options}]
    answer = operator("view_session").get(LIST)
    assert answer.status_code == 200
    assert HEADER not in answer


@pytest.mark.parametrize("query", TESTS_OF_TEXT)
def test_no_address_tests_a_column_that_no_filter_declares(masked, query):
    client = operator("view_session", "trim_history")
    assert client.get(f"{LIST}?{query}").status_code == 400
    assert client.get(f"{LIST}action/trim/?all=1&{query}").status_code == 404
    neighbor = client.get(f"{LIST}{masked.pk}/next/", {"_changelist_filters": query})
    assert neighbor.status_code == 302


@pytest.mark.parametrize(
    ("declared", "query"),
    [
        (("key",), "key__startswith=order"),
        (("owner",), "owner__id__exact=1"),
        ((("archived_at", object),), "archived_at__isnull=1"),
    ],
)
def test_a_host_declares_filters_of_columns(monkeypatch, rf, declared, query):
    sessions = main_site.get_model_admin(Session)
    name, value = query.split("=")
    assert not sessions.lookup_allowed(name, value, rf.get("/"))
    monkeypatch.setattr(type(sessions), "list_filter", declared)
    assert sessions.lookup_allowed(name, value, rf.get("/"))


@pytest.mark.parametrize("mode", ["normal", "masked", "off"])
def test_autocompletion_names_sessions_by_their_keys(masked, settings, mode):
    settings.CHATMEMORY = {"TRANSCRIPTS": mode}
    query = {"app_label": "chatmemory", "model_name": "message", "field_name": "session"}
    found = operator("view_session").get("/admin/autocomplete/", query).json()["results"]
    assert found == [
        {"id": str(masked.pk), "text": f"{SECRET} title" if mode == "normal" else "order-7"}
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "[Infinity]",
        '["2026-01-01", "2026-01-01T00:00:00Z", Infinity]',
        '["0001-01-01", "0001-01-01T00:00:00+14:00", 1]',
        '["9999-12-31", "9999-12-31T23:59:59-14:00", 1]',
        '["2026-01-01", "2026-01-01T00:00:00Z", 1e400]',
    ],
)
def test_a_forged_position_is_the_first_page(text):
    talk_of(None)
    cursor = base64.urlsafe_b64encode(text.encode()).decode()
    client = operator("view_session", "view_audit")
    for address in (LIST, AUDIT, "/admin/chatmemory/job/"):
        for name in ("after", "before"):
            assert client.get(address, {name: cursor}).status_code == 200


@pytest.mark.parametrize("value", ['"\\u0000"', '"\\ud800"'])
def test_a_forged_position_of_a_text_is_the_first_page(monkeypatch, value):
    monkeypatch.setattr(type(main_site.get_model_admin(Session)), "ordering", ("key", "-pk"))
    cursor = base64.urlsafe_b64encode(f"[{value}, 1]".encode()).decode()
    assert operator("view_session").get(LIST, {"after": cursor}).status_code == 200


@pytest.mark.slow
def test_wrong_values_are_no_errors_of_the_server():
    session = talk_of(None)
    client = operator(
        "view_session", "view_audit", "note_session", "view_transcript", "redact_message"
    )
    job = finished("archive", session)
    assert client.get(job_url(job), {"outcome": "\0"}).status_code == 200
    assert client.get(f"{AUDIT}csv/", {"unknown": "1"}).status_code == 404
    for number in ("9" * 5_000, "9" * 25, "²", "٣"):
        answer = client.post(f"{LIST}{session.pk}/notes/", {"delete": number})
        assert answer.status_code == 200
        redaction = f"{LIST}{session.pk}/messages/1/redact/"
        for name in ("older", "also", "turns"):
            answer = client.post(redaction, {"text": "hi", name: number})
            assert answer.status_code == 200


def finished(action, *sessions):
    """Return a job of another operator that has ended."""
    found = Session.objects.filter(pk__in=[session.pk for session in sessions])
    order = Order(by=OTHER, reason="a lawsuit")
    job = create_job(action=action, sessions=found, order=order, params={})
    run_slice(claim_job(owner="tests", job_pk=job.pk))
    job.refresh_from_db()
    return job


@pytest.fixture
def decided(settings, monkeypatch):
    """Return a session that operators may view, and one that the host excludes by row."""
    settings.ROOT_URLCONF = "tests.scoped_admin"
    own = talk_of(make_user("ann"), key="own", title="own title")
    foreign = talk_of(make_user("bob"), key="foreign", title=f"{SECRET} title")
    scoped = type(scoped_site.get_model_admin(Session))
    monkeypatch.delattr(scoped, "get_queryset")
    decide = scoped.has_view_permission
    monkeypatch.setattr(
        scoped,
        "has_view_permission",
        lambda self, request, obj=None: decide(self, request) and (obj is None or obj.pk == own.pk),
    )
    return own, foreign


def test_lists_and_statistics_contain_no_session_that_the_host_excludes(decided):
    own, _foreign = decided
    client = operator("view_session", "view_statistics")
    listed = client.get(LIST)
    assert [session.pk for session in listed.context["cl"].result_list] == [own.pk]
    assert SECRET not in listed.content.decode()
    tables = client.get("/admin/chatmemory_statistics/dailyturns/").context["tables"]
    assert "owners" not in [table.name for table in tables]
    assert client.get("/admin/chatmemory_statistics/dailyturns/owners.csv").status_code == 404


def test_neighbors_pass_over_a_session_that_the_host_excludes(decided):
    own, _foreign = decided
    talk_of(None, key="third")
    client = operator("view_session")
    for page in ("next", "previous"):
        answer = client.get(f"{LIST}{own.pk}/{page}/")
        assert answer["Location"] == f"{LIST}{own.pk}/change/"


def test_an_undo_changes_only_sessions_that_the_operator_may_view(decided):
    own, foreign = decided
    job = finished("archive", own, foreign)
    client = operator("view_session", "view_audit", "archive_session")
    assert client.post(job_url(job, "undo/"), {"reason": "x"}).status_code == 302
    own.refresh_from_db()
    foreign.refresh_from_db()
    assert own.archived_at is None
    assert foreign.archived_at is not None


def test_an_undo_of_more_sessions_than_the_host_can_decide_about_is_refused(decided, monkeypatch):
    own, foreign = decided
    monkeypatch.setattr("chatmemory.admin.jobs.selection.MAX_NAMED", 1)
    job = finished("archive", own, foreign)
    client = operator("view_session", "view_audit", "archive_session")
    answer = client.post(job_url(job, "undo/"), {"reason": "x"})
    assert "decides for each conversation" in answer.content.decode()
    assert not job.undone_by.exists()


@pytest.mark.parametrize("page", ["person/", "person/export/", "person/erase/", "people/"])
def test_a_number_does_not_disclose_a_username(settings, page):
    settings.ROOT_URLCONF = "tests.scoped_admin"
    client = operator("view_session", "export_history", "erase_person")
    for name, is_known in (("ann", True), (f"{SECRET}-user", False)):
        user = make_user(name)
        make_session(f"of-{name}", owner=user)
        scope = services.user_scope(user)
        answer = client.get(f"{LIST}{page}", {"scope": scope, "q": scope}, follow=True)
        assert answer.status_code == 200
        assert (name in answer.content.decode()) is is_known


def test_a_person_decided_by_row_has_no_name(decided):
    scope = services.user_scope(decided[1].owner)
    answer = operator("view_session").get(f"{LIST}person/", {"scope": scope})
    assert answer.context["person"].label == scope


@pytest.mark.parametrize("term", ["", "own", "foreign"])
def test_the_autocompletion_lists_no_session_that_the_host_excludes_by_row(decided, term):
    names = {"app_label": "chatmemory", "model_name": "message", "field_name": "session"}
    answer = operator("view_session").get("/admin/autocomplete/", {**names, "term": term})
    found = [one["text"] for one in answer.json()["results"]]
    assert found == ([] if term == "foreign" else ["own title"])


def test_the_search_for_people_names_nobody_of_whom_the_host_excludes_all(decided):
    client = operator("view_session")
    for term, names in {"b": [], "a": ["ann"], "foreign": [], "own": ["ann"]}.items():
        answer = client.get(f"{LIST}people/", {"q": term}, follow=True)
        page = answer.content.decode()
        assert ("bob" in page, "ann" in page) == (False, bool(names)), term


def test_a_list_decided_by_row_counts_only_what_it_shows(decided, monkeypatch):
    monkeypatch.setattr(scoped_site.get_model_admin(Session), "list_per_page", 1)
    talk_of(None, key="third", title=f"{SECRET} title")
    changelist = operator("view_session").get(LIST, {"q": SECRET}).context["cl"]
    assert (changelist.older_url is None, int(changelist.result_count)) == (False, 0)


TURN = "\u202e"


@pytest.mark.slow
def test_no_page_turns_the_text_of_a_user_around():
    root = make_user(f"r{TURN}oot", is_staff=True, is_superuser=True)
    client = Client()
    client.force_login(root)
    owner = make_user(f"o{TURN}wner")
    first = talk_of(owner, key="first", title="")
    second = make_session(f"s{TURN}econd", owner=owner)
    turn = {"client_id": "c", "user_seq": 1, "epoch": 1, "status": "complete"}
    Turn.objects.create(session=first, model=f"m{TURN}", ended_at=timezone.now(), **turn)
    by = Actor.operator(root)
    order = Order(by=by, reason=f"r{TURN}eason")
    job = create_job(
        action="tag", sessions=Session.objects.all(), order=order, params={"tag": f"t{TURN}ag"}
    )
    run_slice(claim_job(owner="tests", job_pk=job.pk))
    services.erase_person(by=by, scope="user:99999", reason=f"r{TURN}eason")
    entry = AuditEntry.objects.filter(action="tag").first()
    for address in (
        *(LIST, f"{LIST}?active=never", f"{LIST}{first.pk}/change/", f"{LIST}{second.pk}/change/"),
        *(action_url("hold", first, second), action_url("hold", second)),
        *(job_url(job), job_url(job, "undo/"), "/admin/chatmemory/job/"),
        *(AUDIT, f"{LIST}person/?scope=user:99999", f"{LIST}people/?q=o"),
    ):
        page = client.get(address, follow=True).content.decode()
        content = page[page.index('class="breadcrumbs"') :]  # Django's header names the operator
        assert TURN not in content, address
    assert f"{entry.pk}/change" in client.get(AUDIT).content.decode()


@pytest.mark.parametrize(
    ("action", "opposite", "column"),
    [("hold", "release", "held_at"), ("archive", "unarchive", "archived_at")],
)
def test_an_undo_does_not_end_a_later_hold_or_archiving(action, opposite, column):
    session = talk_of(None)
    job = finished(action, session)
    finished(opposite, session)
    finished(action, session)
    order = Order(by=OTHER, reason="x")
    undo = undo_job(job=job, sessions=Session.objects.all(), order=order)
    run_slice(claim_job(owner="tests", job_pk=undo.pk))
    undo.refresh_from_db()
    session.refresh_from_db()
    assert (undo.done, undo.skipped) == (0, {"changed_since": 1})
    assert getattr(session, column) is not None
    shown = operator("view_session", "view_audit", name="eva").get(job_url(undo))
    assert "Changed again since that job." in shown.content.decode()


@pytest.fixture
def later(monkeypatch):
    """Let a form that is submitted again be no double-click."""
    monkeypatch.setattr("chatmemory.admin.jobs.action.REPEATED_FOR", timedelta(0))


@pytest.mark.parametrize("are_at_once", [False, True], ids=["in turn", "at once"])
def test_two_confirmations_of_a_preview_undo_one_removal(are_at_once, later):
    """As by the back button, or by two operators."""
    session = talk_of(None, *"abcdef")
    for keep in (4, 2):
        services.trim_session(**where(session), keep_last=keep, reason="")
    client = operator(*ACTING)
    given = previewed(client, action_url("restore", session))
    if are_at_once:
        job = create_job(
            action="restore",
            sessions=Session.objects.all(),
            order=Order(by=OTHER, reason="x"),
            params={"seen_at": int(given["seen_at"])},
        )
    client.post(action_url("restore", session), given)
    if are_at_once:
        run_slice(claim_job(owner="tests", job_pk=job.pk))
    else:
        client.post(action_url("restore", session), given)
    session.refresh_from_db()
    assert session.first_seq == 3
    assert [job.skipped for job in Job.objects.order_by("done")] == [{"changed": 1}, {}]


def test_a_restore_does_not_undo_a_removal_that_the_preview_did_not_show():
    session = talk_of(None, *"abcdef")
    services.trim_session(**where(session), keep_last=4, reason="")
    client = operator(*ACTING)
    given = previewed(client, action_url("restore", session))
    services.trim_session(**where(session), keep_last=2, reason="")
    entry = AuditEntry.objects.earliest("pk").pk
    for address in (
        action_url("restore", session),
        f"{action_url('restore', session)}&entry={entry}",
    ):
        client.post(address, given)
    assert [job.skipped for job in Job.objects.all()] == [{"changed": 1}] * 2
    session.refresh_from_db()
    assert session.first_seq == 5


def test_a_session_that_is_cleared_before_the_confirmation_is_not_cleared_again(monkeypatch):
    """A second, empty removal would prevent the undo of the first."""
    session = talk_of(None)
    client = operator(*ACTING)
    given = previewed(client, action_url("clear", session))

    def create_late(**given):
        finished("clear", session)
        return create_job(**given)

    monkeypatch.setattr("chatmemory.admin.jobs.action.create_job", create_late)
    client.post(action_url("clear", session), given)
    assert Job.objects.latest("pk").skipped == {"changed": 1}
    assert AuditEntry.objects.filter(action="clear").count() == 1


def test_a_second_confirmation_does_not_stop_the_next_reply(later):
    session = talk_of(None)
    client = operator(*ACTING)
    services.admit_turn(**where(session), client_id="c1", content="?", owner="tests")
    given = previewed(client, action_url("stop", session))
    client.post(action_url("stop", session), given)
    Turn.objects.update(lease_until=timezone.now() - timedelta(minutes=1))
    assert recover_overdue_turn(session.pk)
    services.admit_turn(**where(session), client_id="c2", content="?", owner="tests")
    client.post(action_url("stop", session), given)
    stopped = Turn.objects.filter(stop_requested_at__isnull=False)
    assert [turn.client_id for turn in stopped] == ["c1"]
    assert Job.objects.latest("pk").skipped == {"changed": 1}


def previewed(client, address):
    """Return what the form of a page sends."""
    page = client.get(address)
    fields = re.findall(r'name="(seen_at|count)" value="([0-9]+)"', page.content.decode())
    return {"reason": "x", **dict(fields)}


def where(session):
    return {"session_key": session.key, "scope": session.scope, "by": OTHER}


def test_a_session_that_is_deleted_before_the_confirmation_is_no_error(monkeypatch):
    kept, deleted = make_session("kept"), make_session("deleted")

    def create_late(**given):
        deleted.delete()
        return create_job(**given)

    monkeypatch.setattr("chatmemory.admin.jobs.action.create_job", create_late)
    answer = operator(*ACTING).post(action_url("hold", kept, deleted), {"reason": "x", "count": 2})
    assert answer["Location"] == LIST
    assert Job.objects.get().done == 1


def test_a_job_that_fails_in_the_request_shows_why(monkeypatch):
    session = talk_of(None)
    client = operator(*ACTING)

    def execute_late(claim):
        User.objects.update(is_staff=False)
        run_slice(claim)
        User.objects.update(is_staff=True)  # so that the page can be read

    monkeypatch.setattr("chatmemory.admin.jobs.action.execute", execute_late)
    answer = client.post(action_url("hold", session), {"reason": "x", "count": 1}, follow=True)
    [(address, _)] = answer.redirect_chain
    assert address.startswith(f"{job_url(Job.objects.get())}?back=")
    assert "The operator may not do this any more." in answer.content.decode()


def test_the_audit_as_csv_contains_no_entry_that_the_host_excludes(monkeypatch):
    session = talk_of(None)
    for action in ("hold", "release"):
        finished(action, session)
    audit = type(main_site.get_model_admin(AuditEntry))
    decide = audit.has_view_permission
    monkeypatch.setattr(
        audit,
        "has_view_permission",
        lambda self, request, obj=None: (
            decide(self, request) and (obj is None or obj.action == "hold")
        ),
    )
    text = operator("view_audit").get(f"{AUDIT}csv/").getvalue().decode()
    assert [line.split(",")[2] for line in text.splitlines()] == ['"action"', '"hold"']


@pytest.mark.parametrize(
    ("model", "cell"),
    [("=1+1", "'=1+1"), (" =1+1", "' =1+1"), ("x;=1+1", "x;'=1+1"), ("x\n@SUM(1)", "x\n'@SUM(1)")],
)
def test_no_model_name_in_the_numbers_is_a_formula(model, cell):
    DailyTurns.objects.create(
        day=datetime.now(UTC).date(),
        model=model,
        status="complete",
        error="",
        turns=1,
        tokens_in=0,
        tokens_out=0,
    )
    answer = operator("view_statistics").get("/admin/chatmemory_statistics/dailyturns/models.csv")
    [_head, row] = csv.reader(io.StringIO(answer.content.decode(), newline=""))
    assert row[0] == cell


@pytest.mark.parametrize("pk", ["", "abc", "\0", "1\0", "9" * 5_000, "9" * 25])
def test_a_forged_selection_is_no_error_of_the_server(pk):
    talk_of(None)
    client = operator("view_session", "archive_session")
    answer = client.post(LIST, {"action": "archive", "_selected_action": pk})
    assert answer.status_code in (302, 400)
