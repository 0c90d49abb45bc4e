"""The examples of docs/howto/own-tables.md."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from django.db import transaction
from django.test.utils import isolate_apps

from chatmemory.derived import EndingTurn, see
from chatmemory.models import Session
from chatmemory.services import Actor, append_messages, erase_person, redact_message
from chatmemory.testing.derived import check_derived_rows
from tests.factories import BY, TALK, make_messages, make_session, make_user
from tests.shop.apps import ShopConfig

pytestmark = pytest.mark.django_db

PAGE = (Path(__file__).resolve().parents[3] / "docs/howto/own-tables.md").read_text()
FILES = dict(re.findall(r"```python\n# (shop/\w+\.py)[^\n]*\n(.*?)```", PAGE, re.DOTALL))


@pytest.fixture(autouse=True)
def _own_registry(shop, monkeypatch):
    """Let the page define models that the app of the tests has too, for the same tables."""
    monkeypatch.setattr(ShopConfig, "ready", lambda self: None)
    monkeypatch.setattr("chatmemory.models.derived._followers", {})
    with isolate_apps("tests.shop"):
        yield


def run(name):
    names = {"__name__": f"tests.{name.removesuffix('.py').replace('/', '.')}"}
    exec(FILES[name], names)  # noqa: S102  # our own page
    return names


def test_orders_are_erased_with_their_chat(monkeypatch):
    order = run("shop/models.py")["Order"]
    config = run("shop/apps.py")["ShopConfig"]
    monkeypatch.setattr(config, "get_model", lambda self, name: order)
    config.ready(object.__new__(config))
    order.objects.create(chat=make_session(), item="kettle")
    erase_person(by=BY, scope=TALK["scope"], reason="")
    assert not order.objects.exists()
    assert not Session.objects.exists()


@pytest.mark.slow
def test_the_app_starts_with_the_project():
    code = (
        "from project import settings; settings.INSTALLED_APPS += ['tests.shop']; "
        "import django; django.setup(); "
        "from chatmemory.models.derived import followers; print(*followers().values())"
    )
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "project.settings"}
    command = [sys.executable, "-c", code]
    started = subprocess.run(command, env=env, check=True, capture_output=True, text=True)  # noqa: S603  # our own
    assert started.stdout == "chat\n"


def test_a_summary_is_stored_unless_a_message_was_redacted_meanwhile():
    names = run("shop/summaries.py")
    by = Actor.user(make_user())
    address = {"session_key": "talk", "by": by}
    append_messages(**address, messages=make_messages("one", "two"), create=True)
    talk = Session.objects.get()

    def redact(text):
        redact_message(**address, seq=1, reason="")
        return text

    assert not names["summarize"](**address, model=redact)
    assert names["summarize"](**address, model=str.upper)
    (summary,) = names["summaries_of"](talk)
    assert (summary.low, summary.high, summary.text.split()[-1]) == (1, 2, "TWO")


def test_a_summary_is_stored_at_the_end_of_a_turn(monkeypatch):
    summaries = ModuleType("shop.summaries")
    vars(summaries).update(run("shop/summaries.py"))
    monkeypatch.setitem(sys.modules, "shop.summaries", summaries)
    monkeypatch.setattr("chatmemory.services.turns.at_end._receivers", {})
    append_messages(**TALK, messages=make_messages("one", "two"), create=True)
    ending = EndingTurn(
        seen=see(**TALK), turn="t", user_seq=1, status="complete", left={"summary": "short"}
    )
    with transaction.atomic():
        run("shop/receipts.py")["store_summary"](ending)
    assert summaries.Summary.objects.get().text == "short"


@pytest.mark.slow
def test_the_test_of_the_page_passes():
    assert "check_derived_rows(Summary)" in FILES["shop/tests.py"]
    check_derived_rows(run("shop/summaries.py")["Summary"])
