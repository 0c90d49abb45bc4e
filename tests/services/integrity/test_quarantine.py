"""Each reader marks an unreadable row, and shows the other rows."""

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
from tests.factories import make_messages, make_session, make_user
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
    """Create a session with three messages; of the second one, only the text is readable."""
    session = make_session(owner=owner)
    by = Actor.user(owner) if owner else Actor.server("tests")
    services.append_messages(
        session_key="talk",
        by=by,
        scope=session.scope,
        messages=make_messages("before", "left of it", "on"),
    )
    Message.stored.filter(session=session, seq=2).update(**damage)
    return session


@pytest.fixture
def web() -> Client:
    """A client with Ann's login."""
    client = Client()
    client.force_login(make_user("ann"))
    return client


def ann() -> User:
    return User.objects.get(username="ann")


def test_the_api_marks_an_unreadable_message(web, damage):
    damaged_talk(damage, ann())
    messages = web.get("/api/sessions/talk/messages/").json()["messages"]
    assert [(m["text"], m["quarantined"]) for m in messages] == [
        ("before", False),
        ("left of it", True),
        ("on", False),
    ]
    assert web.get("/api/sessions/talk/messages/2/").json()["quarantined"] is True


def test_the_pages_mark_an_unreadable_message(web, damage):
    damaged_talk(damage, ann())
    html = web.get(reverse("chatmemory:session", args=["talk"])).content.decode()
    assert "left of it" in html
    assert html.count("This message can't be read.") == 1
    alone = web.get(reverse("chatmemory:message", args=["talk", 2]))
    assert alone.content.decode() == "left of it"


def test_the_transcript_marks_an_unreadable_message(damage):
    session = damaged_talk(damage)
    olga = make_user("olga", is_staff=True)
    rights = ("view_session", "view_transcript")
    olga.user_permissions.set(Permission.objects.filter(codename__in=rights))
    client = Client()
    client.force_login(olga)
    for name, more in (("change", ()), ("message", (2,))):
        page = client.get(reverse(f"admin:chatmemory_session_{name}", args=(session.pk, *more)))
        html = page.content.decode()
        assert "left of it" in html
        assert "unreadable; only its text is shown" in html


def test_the_langchain_history_marks_an_unreadable_message(damage):
    damaged_talk(damage)
    before, damaged, after = DjangoChatMessageHistory("talk", owner=None).messages
    assert (before.content, after.content) == ("before", "on")
    assert damaged.content == "left of it"
    assert damaged.additional_kwargs == {"quarantined": True}


@pytest.mark.django_db(transaction=True)
async def test_a_socket_marks_an_unreadable_message(settings):
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
