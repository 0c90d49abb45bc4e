"""The page of a chat with a sample conversation, in a browser with a scripted server."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from django.contrib.auth.models import User
from django.http import HttpRequest
from django.template.loader import render_to_string
from django.utils import translation
from django.utils.translation import gettext
from playwright.sync_api import Page, Route

import chatmemory
from chatmemory.csp import policy
from chatmemory.pages.catalog import Catalog
from chatmemory.pages.listing import Chat, ChatList, Group
from chatmemory.pages.steps import RowSteps
from chatmemory.pages.views import MessageEntry
from chatmemory.rendering.markdown import markdown
from tests.pages.test_chat_js import SITE, ScriptedServer, row

FILES = Path(chatmemory.__file__).parent / "static"
AT = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)
STRICT_POLICY = f"{policy()}; require-trusted-types-for 'script'; trusted-types chatmemory"
TALK = (
    "Can you compare the two plans?",
    "| plan | price | users |\n| --- | --: | --: |\n| small | €9 | 3 |\n| large | €29 | 20 |\n\n"
    "The **large** plan pays off from four users on.[^1]\n\n[^1]: Prices of March.",
    "How do I switch?",
    "1. Open *Settings*.\n2. Choose a plan, or call the API:\n\n"
    '```python\nclient.plans.switch("large")  # from today on\n```\n\n'
    "> You can switch back at any time.",
)


def stored(seq: int, text: str) -> MessageEntry:
    """Return a message of the sample, as the page shows it."""
    role = ("user", "assistant")[seq % 2 - 1]
    html = markdown(text, prefix=f"m{seq}-") if role == "assistant" else None
    marks: dict[str, Any] = {"is_cut": False, "error": "", "redacted": False, "quarantined": False}
    columns: dict[str, Any] = {"seq": seq, "revision": 0, "status": "complete", "at": AT}
    steps = RowSteps(reasoning="", reasoning_cut=False, entries=[])
    return MessageEntry(role=role, html=html, text=text, steps=steps, **columns, **marks)


def listed(key: str, title: str) -> Chat:
    """Return a chat of the list."""
    states = {"is_pinned": False, "is_archived": False, "is_running": False}
    return Chat(key=key, title=title, has_title=bool(title), at=AT, last_seq=2, **states)


def session_page(**context: object) -> str:
    """Return the page of a chat in the active language."""
    titles = ("Plans and prices", "A name for the shop", "Packing list")
    chats = [listed(f"k{number}", title) for number, title in enumerate(titles)]
    groups = [Group(id="week", name=gettext("Previous 7 days"), chats=chats)]
    about = {"key": "k0", "current": chats[0], "title": chats[0].title, "is_listed": True}
    request = {"request": HttpRequest(), "user": User(username="anna"), "csrf_token": "token"}
    given = {
        **about,
        **request,
        "socket": "/ws/chat/k/",
        "list": ChatList(groups=groups, next=None),
    }
    return render_to_string("chatmemory/session.html", {**given, **context})


def catalog_of(language: str) -> str:
    """Return the script with the texts of a language."""
    return Catalog().get(HttpRequest(), language=language).content.decode()


def serve_chat(
    page: Page, html: str, *, language: str, css: str = "", script: str = ""
) -> ScriptedServer:
    """Open a page of a chat, with the texts of a language, more styles and a first module."""
    words = catalog_of(language)
    html = html.replace("</head>", '<link rel="stylesheet" href="/own.css"></head>')
    html = html.replace("<head>", '<head><script type="module" src="/own.js"></script>')

    def answer(route: Route) -> None:
        name = route.request.url.removeprefix(SITE).partition("?")[0]
        if name == "/own.css":
            route.fulfill(body=css, content_type="text/css")
        elif name == "/own.js" or "~words/" in name:
            body = script if name == "/own.js" else words
            route.fulfill(body=body, content_type="text/javascript")
        elif name.startswith("/static/"):
            route.fulfill(path=FILES / name.removeprefix("/static/"))
        elif route.request.is_navigation_request():
            headers = {"Content-Security-Policy": STRICT_POLICY, "Content-Type": "text/html"}
            route.fulfill(body=html, headers=headers)
        else:
            route.fulfill(status=304)  # the list of chats has not changed

    page.route(f"{SITE}/**", answer)
    server = ScriptedServer(page)
    page.goto(f"{SITE}/chat/k0/")
    return server


def open_chat(
    page: Page, texts: Sequence[str] = TALK, *, language: str = "en", css: str = ""
) -> ScriptedServer:
    """Open the page of a chat with these messages."""
    with translation.override(language):
        html = session_page(rows=[stored(seq, text) for seq, text in enumerate(texts, 1)])
    server = serve_chat(page, html, language=language, css=css)
    rows: list[dict[str, Any]] = []
    for seq, text in enumerate(texts, 1):
        role = ("user", "assistant")[seq % 2 - 1]
        turn = f"t{(seq + 1) // 2}"
        about = {"role": role, "turn": turn, "client_id": turn if role == "user" else None}
        rows.append(row(seq, text, created_at=AT.isoformat(), **about))
    server.welcome(*rows)
    page.locator("chat-memory[data-state=live]").wait_for()
    return server
