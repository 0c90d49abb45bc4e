"""A row that can't be read is shown by all, hides no other, and ends nothing."""

from __future__ import annotations

from typing import Any

import pytest
from asgiref.sync import sync_to_async as db
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse

from chatmemory import services
from chatmemory.langchain import DjangoChatMessageHistory
from chatmemory.models import Message, Session
from chatmemory.services import Actor
from tests.factories import make_session, make_user, said
from tests.servers import Tab, own_threads, sign_in

pytestmark = pytest.mark.django_db

DAMAGE: dict[str, dict[str, Any]] = {
    "broken": {"body": '{"role": "assistant", "cont'},
    "of another role": {"body": '{"role":"user","content":"x"}'},
    "of another shape": {"body": '{"role":"assistant","content":7}'},
    "a list": {"body": "[]"},
    "empty": {"body": ""},
    "too deep": {"body": '{"role":"assistant","content":' + "[" * 100},
    "of no role": {"role": "root"},
    "marked": {"body": "{", "quarantined": True},
}


@pytest.fixture(params=DAMAGE)
def damage(request: pytest.FixtureRequest) -> dict[str, Any]:
    return DAMAGE[str(request.param)]


def damaged_talk(damage: dict[str, Any], owner: User | None = None) -> Session:
    """Three messages, of which the second can't be read; what is left of it is its text."""
    session = make_session(owner=owner)
    by = Actor.user(owner) if owner else Actor.server("tests")
    services.append_messages(
        session_key="talk", by=by, scope=session.scope, messages=said("before", "left of it", "on")
    )
    Message.stored.filter(session=session, seq=2).update(**damage)
    return session


@pytest.fixture
def web() -> Client:
    """A client in which Ann is signed in."""
    client = Client()
    client.force_login(make_user("ann"))
    return client


def ann() -> User:
    return User.objects.get(username="ann")


def test_the_api_shows_it(web, damage):
    damaged_talk(damage, ann())
    messages = web.get("/api/sessions/talk/messages/").json()["messages"]
    assert [(m["text"], m["quarantined"]) for m in messages] == [
        ("before", False),
        ("left of it", True),
        ("on", False),
    ]
    assert web.get("/api/sessions/talk/messages/2/").json()["quarantined"] is True


def test_the_pages_show_it(web, damage):
    damaged_talk(damage, ann())
    html = web.get(reverse("chatmemory:session", args=["talk"])).content.decode()
    assert "left of it" in html
    assert html.count("This message can't be read.") == 1
    alone = web.get(reverse("chatmemory:message", args=["talk", 2]))
    assert alone.content.decode() == "left of it"


def test_the_transcript_shows_it(damage):
    session = damaged_talk(damage)
    olga = make_user("olga", is_staff=True)
    rights = ("view_session", "view_transcript")
    olga.user_permissions.set(Permission.objects.filter(codename__in=rights))
    client = Client()
    client.force_login(olga)
    for name, more in (("transcript", ()), ("message", (2,))):
        page = client.get(reverse(f"admin:chatmemory_session_{name}", args=(session.pk, *more)))
        html = page.content.decode()
        assert "left of it" in html
        assert "can&#x27;t be read; shown is its text" in html


def test_the_history_of_langchain_shows_it(damage):
    damaged_talk(damage)
    before, damaged, after = DjangoChatMessageHistory("talk", owner=None).messages
    assert (before.content, after.content) == ("before", "on")
    assert damaged.content == "left of it"
    assert damaged.additional_kwargs == {"quarantined": True}


@pytest.mark.django_db(transaction=True)
async def test_a_socket_shows_it(settings):
    with own_threads():
        person = await db(sign_in)()
        await db(damaged_talk)(DAMAGE["broken"], person.user)
        async with Tab(person) as tab:
            await tab.hello()
        messages = [frame for frame in tab.frames if frame["type"] == "message"]
    assert [(m["text"], m["quarantined"]) for m in messages] == [
        ("before", False),
        ("left of it", True),
        ("on", False),
    ]
