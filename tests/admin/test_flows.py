"""What operators do in a real browser, from the first click to the database and the audit."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.db import connection
from django.test import Client
from django.utils import timezone
from playwright.sync_api import expect

from chatmemory import services
from chatmemory.admin import privacy
from chatmemory.models import AuditEntry, Job, Message, Session, Turn
from chatmemory.services.audit.seals import seal_audit
from chatmemory.services.jobs.actions import ACTIONS
from chatmemory.services.turns.progress import start_turn
from tests.admin.screens import Screens, press
from tests.admin.visits import talk_of
from tests.factories import BY, make_session, make_user
from tests.servers import start_job_runner, wait_for

pytestmark = [pytest.mark.browser, pytest.mark.long, pytest.mark.django_db(transaction=True)]

start_runner = start_job_runner
LIST = "/admin/chatmemory/session/"
REASON = "because of a request"
MANY = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """An action: its form, and the sessions that it has changed."""

    changed: dict[str, Any]
    """The condition on the sessions after the action."""
    restored: dict[str, Any] = field(default_factory=dict)
    """The condition after the undo."""
    fields: dict[str, str] = field(default_factory=dict)
    first: str = ""
    """The action that was performed before."""
    state: str = ""
    """The filter with which the list shows the sessions."""
    sessions: int = 2


FLOWS = {
    "trim": Flow(
        fields={"Number or date": "2"}, changed={"first_seq": 3}, restored={"first_seq": 1}
    ),
    "clear": Flow(changed={"first_seq": 5}, restored={"first_seq": 1}),
    "purge": Flow(
        changed={"removed_at__isnull": False}, restored={"removed_at__isnull": True}, sessions=11
    ),
    "restore": Flow(first="purge", state="purged", changed={"removed_at__isnull": True}),
    "hold": Flow(changed={"held_at__isnull": False}, restored={"held_at__isnull": True}),
    "release": Flow(first="hold", changed={"held_at__isnull": True}),
    "archive": Flow(changed={"archived_at__isnull": False}, restored={"archived_at__isnull": True}),
    "unarchive": Flow(first="archive", changed={"archived_at__isnull": True}),
    "tag": Flow(fields={"Tag": "vip"}, changed={"tags__tag": "vip"}, restored={"tags": None}),
    "untag": Flow(first="tag", fields={"Tag": "vip"}, changed={"tags": None}),
    "stop": Flow(first="admit", changed={"turns__stop_requested_at__isnull": False}),
    "end": Flow(first="stick", changed={"running": None, "turns__status": "interrupted"}),
}

FIRST: dict[str, Callable[..., Any]] = {
    "purge": services.purge_session,
    "hold": services.hold_session,
    "archive": services.archive_session,
    "tag": lambda **of: services.tag_session(tag="vip", **of),
}


def prepare(name):
    """Store the sessions of an action, and return their primary keys."""
    flow = FLOWS[name]
    talks = [talk_of(None, key=f"{name}.{number}") for number in range(flow.sessions)]
    for talk in talks:
        of = {"session_key": talk.key, "scope": talk.scope, "by": BY}
        if flow.first in FIRST:
            FIRST[flow.first](**of, reason="before")
        elif flow.first:
            claim = services.admit_turn(
                **of, client_id=talk.key, content="and?", owner="tests"
            ).claim
            start_turn(claim=claim)
            hour = timedelta(hours=-1 if flow.first == "stick" else 1)
            Turn.objects.filter(session=talk).update(lease_until=timezone.now() + hour)
    return [talk.pk for talk in talks]


class Desk(Screens):
    """A tab of an operator, and the database that the server uses."""

    def ask(self, question: Callable[..., Any], *args: Any) -> Any:
        """Call a function in a thread in which Django allows queries."""
        return self._thread.submit(self._with_connection, question, *args).result()

    _thread = ThreadPoolExecutor(1)

    @staticmethod
    def _with_connection(question, *args):
        try:
            return question(*args)
        finally:
            connection.close()

    def click(self, name: str, role: Any = "button") -> None:
        press(self.page.get_by_role(role, name=name, exact=True))

    def choose(self, action: str, query: str) -> None:
        """Select all sessions that a search finds, and an action for them."""
        self.open(action, f"{LIST}?{query}")
        self.page.locator("#action-toggle").check()
        self.page.get_by_label("Action:").select_option(action)
        self.click("Go")


@pytest.fixture
def root():
    return make_user("root", is_staff=True, is_superuser=True)


@pytest.fixture
def desk(launch, chromium, live_server, root):
    """The tab of a superuser, without problems at the end."""
    client = Client()
    client.force_login(root)
    cookie = client.cookies[django_settings.SESSION_COOKIE_NAME].value
    desk = Desk(launch(chromium), live_server.url, cookie)
    yield desk
    assert desk.problems == []


@pytest.fixture
def sessions(transactional_db):
    """The sessions of each action, by its name."""
    return {name: prepare(name) for name in FLOWS}


@pytest.fixture
def leak(transactional_db):
    return talk_of(make_user("ann"), "My key is sk-1", "I use SK-1", "ok", "bye", key="leak")


def are_changed(pks, condition):
    """Return whether the condition holds for all of these sessions."""
    return Session.objects.filter(pk__in=pks, **condition).distinct().count() == len(pks)


def entries(action, pks):
    found = AuditEntry.objects.filter(action=action, session_pk__in=pks, actor_label="root")
    return set(found.values_list("session_pk", "reason"))


def test_each_action_is_done_and_undone(sessions, desk):
    assert FLOWS.keys() == ACTIONS.keys()
    for name, flow in FLOWS.items():
        pks = sessions[name]
        state = f"&state={flow.state}" if flow.state else ""
        desk.choose(name, f"q={name}.{state}")
        expect(desk.page.locator("#content-main tbody tr")).to_have_count(len(pks))
        for label, value in flow.fields.items():
            desk.page.get_by_label(label).fill(value)
        if flow.fields:
            desk.click("Preview")
        desk.page.get_by_label("Reason").fill(REASON)
        if flow.sessions > 10:
            desk.page.get_by_label("Messages to remove").fill(str(4 * flow.sessions))
        confirm(desk)
        assert_back(desk, f"{LIST}?q={name}.{state}")
        assert desk.ask(are_changed, pks, flow.changed), name
        assert desk.ask(entries, name, pks) == {(pk, REASON) for pk in pks}
        if flow.restored:
            desk.click("Undo")
            assert_back(desk, f"{LIST}?q={name}.{state}")
            assert desk.ask(are_changed, pks, flow.restored), name
            undo = ACTIONS[name].undo
            assert (pks[0], f"Undo: {REASON}") in desk.ask(entries, undo, pks)


def assert_back(desk, address):
    """Assert that the tab shows this page, with one message."""
    expect(desk.page).to_have_url(re.compile(f"{re.escape(address)}$"), timeout=60_000)
    expect(desk.page.locator(".messagelist li")).to_have_count(1)
    expect(desk.page.locator(".messagelist li.success")).to_have_count(1)


def confirm(desk):
    """Click the button that confirms, which is before the link that cancels."""
    press(desk.page.locator(".submit-row button:not([name=preview])"))


def finished(desk, done):
    heading = desk.page.get_by_role("heading", name="Complete", exact=True)
    expect(heading).to_be_visible(timeout=60_000)
    rows = desk.page.locator("#content-main tbody tr")
    expect(rows.get_by_text("Done", exact=True)).to_have_count(done)


def test_selected_sessions_are_exported(sessions, desk):
    desk.choose("export", "q=clear.")
    desk.page.get_by_label("Format").select_option("jsonl")
    desk.page.get_by_label("Reason").fill(REASON)
    with desk.page.expect_download() as download:
        desk.click("Export")
    text = download.value.path().read_text(encoding="utf-8")
    assert text.count('"clear.') >= 2
    assert desk.ask(entries, "export", sessions["clear"]) == {
        (pk, REASON) for pk in sessions["clear"]
    }


def test_a_key_and_its_echo_are_redacted(leak, desk):
    desk.open("redact", f"{LIST}{leak.pk}/change/")
    press(desk.page.locator("#m1").get_by_role("link", name="Redact…"))
    desk.page.get_by_label("Text to find").fill("sk-1")
    desk.click("Find the text")
    expect(desk.page.get_by_label("Message 2, assistant")).to_be_checked()
    desk.page.get_by_label("Reason").fill("a leaked key")
    desk.page.get_by_label("Texts to redact").fill("2")
    desk.click("Redact")
    expect(desk.page.get_by_text("2 texts were redacted.")).to_be_visible()

    def stored():
        texts = (
            Message.stored.filter(session=leak.pk).order_by("seq").values_list("text", flat=True)
        )
        return [*texts], entries("redact", [leak.pk])

    assert desk.ask(stored) == (["", "", "ok", "bye"], {(leak.pk, "a leaked key")})


def test_a_masked_session_is_revealed_until_it_expires(leak, desk, settings, monkeypatch):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "TRANSCRIPTS": "masked"}
    desk.open("reveal", f"{LIST}{leak.pk}/change/")
    text = desk.page.locator("#m1 .chatmemory-text")
    expect(text).to_have_text("•• ••• •• ••-•")
    desk.click("Reveal…", "link")
    desk.page.get_by_label("Reason").fill(REASON)
    desk.click("Reveal")
    expect(text).to_have_text("My key is sk-1")
    assert desk.ask(entries, "reveal", [leak.pk]) == {(leak.pk, REASON)}
    now = privacy.time.time()
    monkeypatch.setattr(privacy.time, "time", lambda: now + privacy.REVEAL_SECONDS + 60)
    desk.page.reload()
    expect(text).to_have_text("•• ••• •• ••-•")


def test_the_audit_is_filtered_downloaded_and_verified(leak, desk):
    of = {"session_key": leak.key, "scope": leak.scope, "by": BY}
    desk.ask(lambda: services.hold_session(**of, reason="a lawsuit"))
    desk.ask(lambda: services.release_session(**of, reason="its end"))
    desk.ask(seal_audit)
    desk.open("audit", "/admin/chatmemory/auditentry/")
    press(desk.page.locator("#changelist-filter").get_by_role("link", name="Put on hold"))
    rows = desk.page.locator("#result_list tbody tr")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("a lawsuit")
    with desk.page.expect_download() as download:
        desk.click("CSV", "link")
    lines = download.value.path().read_text(encoding="utf-8").splitlines()
    assert len(lines) == 2
    assert "a lawsuit" in lines[1]
    desk.click("Verify…", "link")
    desk.click("Verify")
    expect(desk.page.get_by_text("Verified: no entry was changed or deleted.")).to_be_visible()
    desk.ask(lambda: AuditEntry.objects.filter(action="hold").update(reason="none"))
    desk.click("Verify")
    expect(desk.page.get_by_role("heading", name="Findings")).to_be_visible()


def test_a_person_is_exported_and_erased(leak, desk):
    desk.open("people", f"{LIST}people/")
    desk.page.get_by_label("Find a person").fill("ann")
    desk.click("Find")
    desk.click("Export…", "link")
    desk.page.get_by_label("Reason").fill("a request for access")
    with desk.page.expect_download() as download:
        desk.click("Download")
    assert "I use SK-1" in download.value.path().read_text(encoding="utf-8")
    desk.click("Back", "link")
    desk.click("Erase…", "link")
    desk.page.get_by_label("Name").fill("ann")
    desk.page.get_by_label("Reason").fill("a request for erasure")
    desk.click("Erase permanently")
    expect(desk.page.get_by_text("Conversations erased: 1. Messages: 4.")).to_be_visible()
    expect(desk.page.get_by_role("cell", name="a request for erasure")).to_be_visible()

    def stored():
        reasons = AuditEntry.objects.filter(action__in=["export", "erase"])
        return Message.stored.count(), set(reasons.values_list("action", "reason"))

    assert desk.ask(stored) == (
        0,
        {("export", "a request for access"), ("erase", "a request for erasure")},
    )


@pytest.fixture
def many(transactional_db):
    for number in range(MANY):
        make_session(f"many.{number}")


def test_a_killed_job_is_continued_and_its_page_follows(many, desk, start_runner, monkeypatch):
    # So that the requests of the page leave the job to other processes.
    monkeypatch.setattr("chatmemory.admin.jobs.pages.claim_job", lambda **_: None)
    monkeypatch.setattr("chatmemory.admin.jobs.action.execute", lambda _claim: release())
    desk.open("archive", f"{LIST}action/archive/?all=1&q=many.")
    desk.page.get_by_label("Reason").fill(REASON)
    desk.page.get_by_label(re.compile("^Conversations")).fill(str(MANY))
    confirm(desk)
    expect(desk.page.get_by_role("progressbar")).to_have_attribute("value", "0")

    first = start_runner()
    wait_for(lambda: desk.ask(lambda: Job.objects.get().done), "the job makes no progress")
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert desk.ask(lambda: Job.objects.get().is_active)
    expect(desk.page.get_by_role("progressbar")).not_to_have_attribute("value", "0")
    start_runner()
    finished(desk, 100)
    expect(desk.page.get_by_text(f"{MANY} conversations archived.")).to_be_visible()
    expect(desk.page.get_by_role("link", name="Back", exact=True)).to_have_attribute(
        "href", f"{LIST}?q=many."
    )

    def stored():
        pks = list(Session.objects.values_list("pk", flat=True))
        job = Job.objects.get()
        is_done = are_changed(pks, {"archived_at__isnull": False})
        return job.status, job.done, job.skipped, is_done, len(entries("archive", pks))

    assert desk.ask(stored) == ("complete", MANY, {}, True, MANY)
    assert desk.ask(AuditEntry.objects.filter(action="archive").count) == MANY


def release():
    """Let any process continue a job that this one has created."""
    Job.objects.update(lease_until=None)
