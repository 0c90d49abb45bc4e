"""The examples of docs/start/your-project.md work."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from asgiref.sync import async_to_sync
from django.test.utils import override_settings
from django.urls import include, path, reverse

from chatmemory import services
from chatmemory.models import DatabaseNow, Message
from chatmemory.services import Actor
from tests.admin.visits import talk_of
from tests.factories import BY, make_session, make_user
from tests.test_examples import run_example

pytestmark = pytest.mark.django_db

PAGE = "docs/start/your-project.md"


def texts_of(session):
    return [row.text for row in Message.stored.filter(session=session).order_by("seq")]


def test_each_example_has_a_test():
    text = (Path(__file__).resolve().parents[2] / PAGE).read_text()
    files = re.findall(r"^```python\n# (\S+)$", text, re.MULTILINE)
    assert len(files) == text.count("```python")
    tested = Path(__file__).read_text()
    assert [name for name in files if f'"# {name}"' not in tested] == []


def test_a_task_writes_to_the_newest_chat_once():
    ann = make_user("ann")
    chat = make_session(owner=ann)
    announce = run_example(PAGE, "# shop/tasks.py")["announce_shipping"]
    for _ in range(2):
        announce(SimpleNamespace(pk=7, customer=ann))
    assert texts_of(chat) == ["Your order 7 was shipped."]


def test_a_task_passes_over_an_archived_chat():
    ann = make_user("ann")
    chat = make_session(owner=ann)
    closed = make_session("closed", owner=ann, archived_at=DatabaseNow())
    run_example(PAGE, "# shop/tasks.py")["announce_shipping"](SimpleNamespace(pk=7, customer=ann))
    assert (texts_of(chat), texts_of(closed)) == (["Your order 7 was shipped."], [])


def test_a_task_opens_a_chat_for_a_customer_without_one():
    ann = make_user("ann")
    run_example(PAGE, "# shop/tasks.py")["announce_shipping"](SimpleNamespace(pk=7, customer=ann))
    session = services.get_session(session_key="order-7", by=Actor.user(ann))
    assert texts_of(session) == ["Your order 7 was shipped."]


def test_a_site_of_the_project_has_the_pages_of_chatmemory(client):
    site = run_example(PAGE, "# shop/sites.py")["site"]
    addresses = [path("office/", site.urls), path("chat/", include("chatmemory.urls"))]
    urls = type("urls", (), {"urlpatterns": addresses})
    talk = talk_of(make_user("ann"))
    client.force_login(make_user("olga", is_staff=True, is_superuser=True))
    with override_settings(ROOT_URLCONF=urls):
        for name in ("session", "job", "auditentry", "maintenance"):
            page = client.get(reverse(f"admin:chatmemory_{name}_changelist"), follow=True)
            assert page.status_code == 200, name
        page = client.get(reverse("admin:chatmemory_session_change", args=[talk.pk]))
    assert page.status_code == 200


def test_a_colleague_answers_in_place_of_the_bot():
    names = run_example(PAGE, "# shop/handoff.py")
    session = make_session(owner=make_user("ann"), metadata={"group": "gold"})

    async def reply():
        return [text async for text in names["wait_for_colleague"]([], session)]

    assert async_to_sync(reply)() == ["A colleague will answer here."]
    names["hand_over"](session, BY)
    session.refresh_from_db()
    assert session.metadata == {"group": "gold", "handed_over": True}
    olga = make_user("olga")
    names["answer_as_colleague"](session, "It comes on Monday.", olga)
    row = Message.stored.get(session=session)
    assert (row.text, row.author) == ("It comes on Monday.", f"operator:{olga.pk}")
