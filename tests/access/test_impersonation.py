"""Staff who view the chats of a person can write nothing, and the audit names them."""

from __future__ import annotations

import uuid

import pytest
from asgiref.sync import sync_to_async as db
from django.conf import settings as django_settings
from django.contrib.auth import get_user_model
from django.test import Client as Browser

from chatmemory import services
from chatmemory.errors import Impersonated
from chatmemory.live.hub import hub
from chatmemory.models import AuditEntry, Message, Reading, Session, Ticket, Turn
from chatmemory.services import Actor
from tests.factories import make_messages, make_user
from tests.impersonators_for_tests import HIJACK, IMPERSONATE
from tests.servers import Person, Tab, connected, live_process, person_with_talk

pytestmark = pytest.mark.django_db(transaction=True)

ann = person_with_talk
live = live_process


@pytest.fixture
def select(settings):
    def select(name):
        path = f"tests.impersonators_for_tests.{name}"
        settings.CHATMEMORY = {**settings.CHATMEMORY, "IMPERSONATOR": path}

    return select


@pytest.fixture
def staff(ann, live, settings):
    settings.MIDDLEWARE = [
        *settings.MIDDLEWARE,
        "tests.impersonators_for_tests.ImpersonateMiddleware",
    ]
    return make_user("olga", is_staff=True)


def browser_of(user, **session):
    browser = Browser()
    browser.force_login(user)
    stored = browser.session
    stored.update(session)
    stored.save()
    return browser


def person_of(browser, user):
    return Person(user, browser.cookies[django_settings.SESSION_COOKIE_NAME].value)


@pytest.fixture(params=["of_impersonate", "of_hijack"])
def browser(request, ann, staff, select):
    """The staff's browser, which shows Ann's chats."""
    services.append_messages(**ann.talk, messages=make_messages("My order?", "Here."))
    select(request.param)
    if request.param == "of_impersonate":
        return browser_of(staff, **{IMPERSONATE: ann.user.pk})
    return browser_of(ann.user, **{HIJACK: [str(staff.pk)]})


def entries(**fields):
    found = AuditEntry.objects.filter(**fields).order_by("pk")
    return [(entry.action, entry.actor_kind, entry.actor_label) for entry in found]


def test_the_page_states_whose_chat_it_is_and_has_nothing_to_write_with(ann, browser):
    html = browser.get("/chat/talk/").content.decode()
    assert f"You view this as {ann.user}, so you can't write." in html
    assert f' person="{ann.user.pk}"' in html
    assert 'class="cm-readonly"' in html
    assert "element/readonly.css" in html
    assert "My order?" in html
    assert entries() == [("read", "operator", "olga")]


def test_the_page_names_the_person_without_a_middleware(ann, browser, settings):
    settings.MIDDLEWARE = settings.MIDDLEWARE[:-1]
    without = Browser()
    without.cookies = browser.cookies
    page = without.get("/chat/talk/").content.decode()
    assert f"You view this as {ann.user}, so you can't write." in page
    assert f' person="{ann.user.pk}"' in page


def test_a_removal_on_the_page_is_audited_as_that_of_the_staff(browser):
    answer = browser.post("/chat/talk/delete/", headers={"accept": "application/json"})
    assert answer.status_code == 200
    assert entries(action="purge") == [("purge", "operator", "olga")]
    assert browser.post(answer.json()["undo"]).status_code == 302
    assert entries(action="restore") == [("restore", "operator", "olga")]


def test_what_the_staff_removed_is_not_restored_by_the_person(ann, browser):
    browser.post("/chat/talk/delete/")
    assert services.list_removed(by=Actor.user(ann.user)) == []


def test_removals_and_names_over_rest_are_audited_as_those_of_the_staff(browser):
    browser.patch("/api/sessions/talk/", {"title": "Order"}, "application/json")
    assert browser.delete("/api/sessions/talk/").status_code == 200
    assert browser.get("/api/own-data/export/").status_code == 200
    found = entries()
    assert [action for action, *_ in found] == ["rename", "purge", "export"]
    assert {entry[1:] for entry in found} == {("operator", "olga")}


def test_reading_over_rest_is_audited(browser):
    assert browser.get("/api/sessions/talk/messages/").status_code == 200
    assert entries() == [("read", "operator", "olga")]


@pytest.mark.parametrize(
    "path",
    ["/api/sessions/talk/messages/1/", "/chat/talk/1/", "/chat/talk/html/"],
)
def test_reading_messages_without_the_page_is_audited(browser, path):
    assert browser.get(path).status_code == 200
    assert entries() == [("read", "operator", "olga")]


def test_rest_refuses_to_write(browser):
    given = {"client_id": "c1", "text": "As Ann"}
    key = str(uuid.uuid4())
    for path, body in (
        ("/api/sessions/talk/messages/", given),
        ("/api/sessions/", {"key": key}),
    ):
        answer = browser.post(path, body, "application/json")
        assert (answer.status_code, answer.json()["code"]) == (403, "impersonated")
    assert not Turn.objects.exists()
    assert Session.objects.count() == 1


def test_no_ticket_is_issued_that_would_outlive_the_impersonation(browser):
    answer = browser.post("/api/tickets/", {}, "application/json")
    assert (answer.status_code, answer.json()["code"]) == (403, "impersonated")
    assert not Ticket.objects.exists()


async def test_the_socket_shows_the_chat_and_refuses_to_write(ann, browser):
    async with connected(tab := Tab(person_of(browser, ann.user))):
        assert tab.texts() == ["My order?", "Here."]
        error = await tab.send("As Ann")
        assert (error["code"], error["retry"]) == ("impersonated", False)
        error = await tab.ask("feedback", turn="c1", value=1)
        assert error["code"] == "impersonated"
        assert (await tab.ask("rename", title="Order"))["type"] == "ok"
    assert not await db(Turn.objects.exists)()
    assert await db(entries)() == [("read", "operator", "olga"), ("rename", "operator", "olga")]


async def test_a_socket_that_reads_on_later_is_audited_again(ann, browser):
    async with connected(tab := Tab(person_of(browser, ann.user))):
        await db(Reading.objects.all().delete)()  # as after an hour
        assert (await tab.ask("fetch", before_seq=2))["type"] == "ok"
    assert await db(entries)() == [("read", "operator", "olga")] * 2


async def test_the_socket_accepts_the_page_of_the_person_and_no_other(ann, staff, browser):
    person = person_of(browser, ann.user)
    async with Tab(person) as tab:
        await tab.hello(person=str(ann.user.pk))
    async with Tab(person) as tab:
        await tab.send_frame("hello", v=1, person=str(staff.pk))
        bye, _ = await tab.closed()
    assert bye["reason"] == "other_person"


@pytest.mark.parametrize("by_sweep", [True, False])
async def test_the_socket_ends_with_the_impersonation(ann, browser, by_sweep):
    async with connected(tab := Tab(person_of(browser, ann.user))):
        await db(end_impersonation)(browser)
        if by_sweep:
            await hub.sweep._sweep_logins()
        else:
            assert (await tab.send("As Ann"))["code"] == "other_person"
        bye, code = await tab.closed()
    assert (bye["reason"], code) == ("other_person", 4401)


def end_impersonation(browser):
    session = browser.session
    session.pop(IMPERSONATE, None)
    session.pop(HIJACK, None)
    session.save()


async def test_without_the_function_the_socket_keeps_the_login(ann, staff):
    browser = await db(browser_of)(staff, **{IMPERSONATE: ann.user.pk})
    assert (await db(browser.get)("/chat/talk/")).status_code == 200
    async with Tab(person_of(browser, ann.user)) as tab:
        await tab.send_frame("hello", v=1, person=str(ann.user.pk))
        bye, code = await tab.closed()
    assert (bye["reason"], code, tab.texts()) == ("other_person", 4401, [])


async def test_an_inactive_person_or_staff_member_ends_it(ann, staff, browser):
    users = get_user_model().objects
    for user in (staff, ann.user):
        async with connected(tab := Tab(person_of(browser, ann.user))):
            await db(users.filter(pk=user.pk).update)(is_active=False)
            assert (await tab.send("As Ann"))["code"] == "unauthenticated"
        await db(users.update)(is_active=True)


def test_a_function_that_returns_no_user_shows_nothing(ann, staff, select):
    select("wrong")
    browser = browser_of(ann.user)
    browser.raise_request_exception = False
    assert browser.get("/chat/talk/").status_code == 500
    assert browser.get("/api/sessions/").status_code == 500


def test_no_service_writes_in_the_name_of_another(ann, staff):
    by = Actor("user", str(ann.user.pk), "ann", real=Actor.operator(staff))
    for call in (
        lambda: services.admit_turn(session_key="talk", by=by, client_id="c1", content="x"),
        lambda: services.append_messages(session_key="talk", by=by, messages=make_messages("x")),
        lambda: services.open_session(session_key="new", by=by),
        lambda: services.set_feedback(session_key="talk", by=by, turn="c1", value=1),
        lambda: services.adopt_visitor(by=by, visitor=Actor.known_visitor("0" * 64)),
    ):
        with pytest.raises(Impersonated):
            call()
    assert not Message.objects.exists()
