"""Draw the pictures of the README and of docs/howto/appearance.md.

`python -m pytest tests/pages/draw_pictures.py`
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import expect

from chatmemory import services
from chatmemory.services import Actor
from tests.conftest import database_environment
from tests.pages import test_browser
from tests.pages.scenes import TALK, open_chat
from tests.servers import Server

login = test_browser.login

PICTURES = Path(__file__).resolve().parents[2] / "docs/images"
SIZE = {"width": 1000, "height": 740}
OWN = """
:root {
  --cm-accent: light-dark(#0a6b45, #7fd6a8);
  --cm-on-accent: light-dark(#ffffff, #06251a);
  --cm-user-bubble: light-dark(#dff3e8, #173a2b);
  --cm-shade: light-dark(#f6f3ec, #1d1b17);
  --cm-font: Georgia, "DejaVu Serif", serif;
}
"""
ARABIC = (
    "هل يمكنك المقارنة بين الخطتين؟",
    "| الخطة | السعر |\n| --- | --- |\n| صغيرة | 9 € |\n| كبيرة | 29 € |\n\n"
    'الخطة **الكبيرة** أفضل من أربعة مستخدمين.\n\n```python\nclient.plans.switch("large")\n```',
)

REPLIES = {
    "The kettle from order 48213 leaks while it boils.": (
        "Then it is most likely the seal of the lid. I noted order **48213**. You can have:\n\n"
        "| what | arrives | price |\n| --- | --- | --: |\n| a new seal | Tuesday | free |\n"
        "| a new lid | Wednesday | free |\n| the money | Friday | €39 |"
    ),
    "The new lid, please. It stands in our office in Lisbon.": (
        "The lid ships tomorrow. You can track it:\n\n"
        '```python\nclient.orders.get(48213).parcels[0].status  # "packed"\n```'
    ),
    "What was my order number, and which city?": (
        "Your order number is **48213**. Your city is **Lisbon**."
    ),
}


async def answer(messages: list[dict[str, str]], session: object) -> AsyncGenerator[str, None]:
    """Reply as a shop would."""
    yield REPLIES[messages[-1]["content"]]


@pytest.mark.django_db(transaction=True)
def test_draw_the_chat(launch, chromium, login, tmp_path):
    by = Actor.user(User.objects.get(username="ann"))
    for key, title in enumerate(("Night train to Vienna", "Flat bread", "A kettle that leaks")):
        services.open_session(session_key=str(key), by=by, title=title)
        if title != "A kettle that leaks":
            message = {"role": "user", "content": title}
            services.append_messages(session_key=str(key), messages=[message], by=by)
    bot = "tests.pages.draw_pictures.answer"
    server = Server(database_environment(), tmp_path / "log", RESPONDER=bot).start()
    desk = test_browser.Desk(server, launch(chromium), login)
    desk.context = desk.new_context(viewport={"width": 1200, "height": 840})
    chat = desk.open("2")
    for number, text in enumerate(REPLIES, 1):
        chat.send(text)
        expect(chat.page.locator(".cm-assistant[data-html]")).to_have_count(number)
    expect(chat.page.locator("[aria-busy]")).to_have_count(0)
    chat.page.reload()
    chat.expect_live()
    chat.page.screenshot(path=PICTURES / "chat.png", animations="disabled")
    server.kill()


@pytest.mark.parametrize(
    ("name", "scheme", "texts", "options"),
    [
        ("light", "light", TALK, {}),
        ("dark", "dark", TALK, {}),
        ("own", "light", TALK, {"css": OWN}),
        ("rtl", "light", ARABIC, {"language": "ar"}),
    ],
)
def test_draw(launch, chromium, name, scheme, texts, options):
    with launch(chromium).new_context(color_scheme=scheme, viewport=SIZE) as context:
        page = context.new_page()
        open_chat(page, texts, **options)
        page.screenshot(path=PICTURES / f"appearance-{name}.png", animations="disabled")
