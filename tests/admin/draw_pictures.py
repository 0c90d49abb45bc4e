"""Draw the pictures of docs/howto/operators.md.

`python -m pytest tests/admin/draw_pictures.py`
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from django.conf import settings
from django.test import Client

from chatmemory import services
from chatmemory.models import Message, Session, Turn
from chatmemory.services import Actor
from chatmemory.services.turns.progress import finish_turn, start_turn
from tests.admin.screens import Screens
from tests.factories import make_session, make_user

PICTURES = Path(__file__).resolve().parents[2] / "docs/images"
SIZE = {"width": 1280, "height": 600}
CHATS = (
    ("ann.miller", "A kettle that leaks", "My kettle from order 48213 leaks while it boils.", 0.1),
    ("ben.okafor", "Change of an address", "Please send it to our office in Lisbon.", 2),
    ("chloe.martin", "A bill that is missing", "I need the bill of order 47190 as a PDF.", 5),
    ("ann.miller", "Delivery on Saturday?", "Do you deliver on Saturdays?", 26),
    ("dev.patel", "A refund for order 46002", "Where is my money?", 49),
    ("eva.north", "Spare parts", "Which lid fits the model K2?", 75),
    ("ben.okafor", "Two parcels, one arrived", "Only one of two parcels arrived.", 98),
)
"""The person, the title, the message, and how many hours ago."""
REPLY = (
    "Then it is most likely the seal of the lid. You can have:\n\n"
    "| what | arrives | price |\n| --- | --- | --: |\n| a new seal | Tuesday | free |\n"
    "| a new lid | Wednesday | free |"
)


def answer(of, client_id, text, reply, **ending):
    claim = services.admit_turn(**of, client_id=client_id, content=text, owner="shop").claim
    start_turn(claim=claim)
    ended = {"status": "complete", "model": "example-large", "first_text_ms": 640, **ending}
    usage = {"input_tokens": 412, "output_tokens": 96}
    message = {"role": "assistant", "content": reply}
    finish_turn(claim=claim, message=message, usage=usage, **ended)


@pytest.fixture
def talks(transactional_db):
    root = make_user("olga", is_staff=True, is_superuser=True)
    owners = {name: make_user(name) for name in dict.fromkeys(chat[0] for chat in CHATS)}
    talks = []
    for number, (name, title, text, hours) in enumerate(CHATS, 48_201):
        talk = make_session(f"shop-{number}", owner=owners[name], title=title)
        of = {"session_key": talk.key, "scope": talk.scope, "by": Actor.operator(root)}
        failed = {"status": "failed", "error": "model_timeout"} if title == "Spare parts" else {}
        answer(of, "a", text, REPLY, **failed)
        if not talks:
            answer(of, "b", "The new lid, please.", "It ships **tomorrow**.")
            services.tag_session(**of, tag="warranty", reason="")
            services.add_note(**of, text="The second kettle of this model this week.")
        if title == "A refund for order 46002":
            services.hold_session(**of, reason="a dispute with the bank")
        at = datetime.now(UTC) - timedelta(hours=hours)
        moved = {"created_at": at, "last_message_at": at, "last_active_day": at.date()}
        Session.objects.filter(pk=talk.pk).update(**moved)
        Message.objects.filter(session=talk).update(created_at=at)
        Turn.objects.filter(session=talk).update(ended_at=at, started_at=at - timedelta(seconds=4))
        talks.append(talk)
    return talks


@pytest.fixture
def screens(launch, chromium, live_server, talks):
    client = Client()
    client.force_login(type(talks[0].owner).objects.get(username="olga"))
    cookie = client.cookies[settings.SESSION_COOKIE_NAME].value
    return Screens(launch(chromium), live_server.url, cookie)


@pytest.mark.django_db(transaction=True)
def test_draw_the_console(screens, talks):
    paths = {"list": "", "conversation": f"{talks[0].pk}/change/"}
    screens.page.set_viewport_size(SIZE)
    for name, path in paths.items():
        page = screens.open(name, f"/admin/chatmemory/session/{path}")
        page.wait_for_load_state("networkidle")
        page.screenshot(path=PICTURES / f"console-{name}.png", animations="disabled")
