"""The function of GATE decides for pages, REST and sockets alike, and sees the Django session."""

from __future__ import annotations

import pytest
from asgiref.sync import sync_to_async as db
from django.conf import settings as django_settings
from django.test import Client as Browser

from chatmemory import services
from chatmemory.checks.project import check_gates
from chatmemory.live.hub import hub
from chatmemory.models import Turn
from tests import gates_for_tests
from tests.gates_for_tests import DEVICE, SENTENCE, VISITS
from tests.servers import Tab, connected, live_process, person_with_talk

pytestmark = pytest.mark.django_db(transaction=True)

ann = person_with_talk
live = live_process


@pytest.fixture(autouse=True)
def _forget():
    VISITS.clear()


@pytest.fixture
def select(settings):
    def select(name):
        path = f"{gates_for_tests.__name__}.{name}"
        settings.CHATMEMORY = {**settings.CHATMEMORY, "GATE": path}

    return select


def browser_of(ann, **options):
    browser = Browser(**options)
    browser.cookies[django_settings.SESSION_COOKIE_NAME] = ann.cookie
    return browser


def set_device(ann, device):
    """Confirm the second factor, or revoke it with None."""
    session = browser_of(ann).session
    if device is None:
        session.pop(DEVICE, None)
    else:
        session[DEVICE] = device
    session.save()


class OTPMiddleware:
    """Like that of django-otp, whose module it names."""

    __module__ = "django_otp.middleware"


both = pytest.mark.parametrize("name", ["second_factor", "asecond_factor"])


@both
def test_a_page_shows_the_sentence_until_the_second_factor_is_confirmed(ann, live, select, name):
    select(name)
    for path in ("/chat/~all/", "/chat/talk/", "/chat/~data/"):
        answer = browser_of(ann).get(path)
        html = answer.content.decode()
        assert (answer.status_code, SENTENCE in html) == (403, True)
        assert '<a class="cm-button" href="/">Back to the site</a>' in html
        assert ">Your chats</a>" not in html  # it would lead here again
    assert {visit.kind for visit in VISITS} == {"page"}
    answer = browser_of(ann).post("/chat/talk/delete/", headers={"accept": "application/json"})
    assert (answer.status_code, answer.json()) == (403, {"code": "refused", "message": SENTENCE})
    set_device(ann, "totp/1")
    assert browser_of(ann).get("/chat/talk/").status_code == 200


@both
def test_rest_answers_refused_until_the_second_factor_is_confirmed(ann, live, select, name):
    select(name)
    answer = browser_of(ann).get("/api/sessions/")
    assert answer.status_code == 403
    problem = answer.json()
    assert (problem["code"], problem["reason"]) == ("refused", "second_factor")
    assert problem["detail"] == SENTENCE
    assert browser_of(ann).post("/api/tickets/", {}, "application/json").status_code == 403
    set_device(ann, "totp/1")
    assert browser_of(ann).get("/api/sessions/").status_code == 200


@both
async def test_a_handshake_is_refused_until_the_second_factor_is_confirmed(ann, live, select, name):
    select(name)
    async with Tab(ann) as tab:
        await tab.send_frame("hello", v=1)
        bye, code = await tab.closed()
    assert (bye["reason"], bye["message"], bye["reconnect"], code) == (
        "refused",
        SENTENCE,
        False,
        4403,
    )
    await db(set_device)(ann, "totp/1")
    async with connected(tab := Tab(ann)):
        assert (await tab.send("hi"))["type"] == "ok"


async def test_the_gate_sees_the_same_of_a_socket_as_of_a_page(ann, live, select):
    await db(set_device)(ann, "totp/1")
    select("second_factor")
    await db(browser_of(ann, headers={"x-team": "tea"}).get)("/chat/talk/")
    async with connected(Tab(ann, headers={"x-team": "tea"})):
        pass
    page, socket = VISITS[0], VISITS[-1]
    assert (page.kind, socket.kind) == ("page", "socket")
    assert (page.path, socket.path) == ("/chat/talk/", "/ws/chat/talk/")
    for visit in (page, socket):
        assert (visit.by, visit.user, visit.host) == (ann.talk["by"], ann.user, "testserver")
        assert visit.headers["X-Team"] == "tea"
        assert visit.cookies[django_settings.SESSION_COOKIE_NAME] == ann.cookie
        assert visit.session[DEVICE] == "totp/1"
        with pytest.raises(TypeError):
            visit.session[DEVICE] = None


async def test_a_socket_ends_at_the_next_frame_after_the_second_factor_is_revoked(
    ann, live, select
):
    await db(set_device)(ann, "totp/1")
    select("second_factor")
    async with connected(tab := Tab(ann)):
        await db(set_device)(ann, None)
        error = await tab.send("hi")
        assert (error["code"], error["message"]) == ("refused", SENTENCE)
        bye, code = await tab.closed()
    assert (bye["message"], code) == (SENTENCE, 4403)
    assert not await db(Turn.objects.exists)()


async def test_an_idle_socket_ends_after_the_second_factor_is_revoked(ann, live, select):
    await db(set_device)(ann, "totp/1")
    select("second_factor")
    async with connected(tab := Tab(ann), other := Tab(ann)):
        await db(set_device)(ann, None)
        await hub.sweep._sweep_logins()
        bye, code = await tab.closed()
        assert (await other.closed())[1] == 4403
    assert (bye["message"], code) == (SENTENCE, 4403)


async def test_a_ticket_has_the_session_that_issued_it(ann, live, select):
    await db(set_device)(ann, "totp/1")
    select("second_factor")
    issued = await db(browser_of(ann).post)("/api/tickets/", {}, "application/json")
    async with Tab(None, protocols=issued.json()["protocols"]) as tab:
        await tab.hello()
    assert VISITS[-1].session[DEVICE] == "totp/1"


@pytest.mark.parametrize("name", ["fail", "forget"])
async def test_a_function_that_fails_or_returns_a_value_lets_nobody_in(
    ann, live, select, caplog, name
):
    select(name)
    browser = browser_of(ann, raise_request_exception=False)
    for path in ("/chat/talk/", "/api/sessions/"):
        assert (await db(browser.get)(path)).status_code == 500
    async with Tab(ann) as tab:
        await tab.send_frame("hello", v=1)
        bye, _ = await tab.closed()
    assert bye["reason"] == "internal"
    assert "the login of a socket failed" in caplog.text


async def test_an_open_socket_stays_while_the_function_fails_but_writes_nothing(
    ann, live, select, settings
):
    await db(set_device)(ann, "totp/1")
    select("second_factor")
    async with connected(tab := Tab(ann)):
        select("fail")
        await hub.sweep._sweep_logins()
        assert (await tab.send("hi"))["code"] == "internal"
        select("second_factor")
        assert (await tab.send("hi"))["type"] == "ok"
    assert await db(services.get_session)(**ann.talk)


class OfHost(OTPMiddleware):
    """A subclass in the host's code."""


@pytest.mark.parametrize(
    ("path", "is_known"),
    [
        ("impersonate.middleware.ImpersonateMiddleware", True),
        ("hijack.middleware.HijackUserMiddleware", True),
        ("django_otp.middleware.OTPMiddleware", True),
        (f"{__name__}.OfHost", True),
        ("allauth_2fa.middleware.AllauthTwoFactorMiddleware", True),
        ("django.contrib.auth.middleware.AuthenticationMiddleware", False),
        ("django_otpauth.middleware.Other", False),
    ],
)
def test_a_known_middleware_is_reported_until_its_setting_is_set(settings, path, is_known):
    settings.MIDDLEWARE = [path]
    found = check_gates(None)
    assert [each.id for each in found] == ["chatmemory.W044"] * is_known
    assert all(path in each.msg for each in found)
    path = f"{gates_for_tests.__name__}.second_factor"
    settings.CHATMEMORY = {**settings.CHATMEMORY, "GATE": path, "IMPERSONATOR": path}
    assert check_gates(None) == []
