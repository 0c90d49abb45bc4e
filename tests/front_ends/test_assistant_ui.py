"""Pages of assistant-ui, on top of the AI SDK's `useChat`, show what is stored."""

from __future__ import annotations

import pytest

from chatmemory.models import Turn
from tests.front_ends.stored import expected, of_assistant_ui

pytestmark = [pytest.mark.long, pytest.mark.redis, pytest.mark.django_db(transaction=True)]


def assert_shown(page, state):
    assert of_assistant_ui(state["messages"]) == expected(page.key)
    assert state["error"] is None


@pytest.mark.parametrize("text", ["Where is my kettle?", "weather", "other", "mixed 3"])
def test_a_reply_is_shown_as_it_is_stored(open_page, text):
    page = open_page("assistant-ui")
    assert_shown(page, page.call("send", text=text))
    assert len(expected(page.key)) == 2
    assert_shown(page, page.call("reload"))


def test_a_reply_continues_after_a_reload_and_one_is_stopped(open_page):
    page = open_page("assistant-ui")
    page.start("send", text="count 80")
    page.call("grown", chars=10)
    assert_shown(page, page.call("reload"))
    sent = page.start("send", text="endless")
    page.call("grown", chars=50)
    page.call("stop")
    assert_shown(page, sent.result(60))
    assert [turn.status for turn in Turn.objects.order_by("pk")] == ["complete", "interrupted"]


def test_a_reply_is_written_again(open_page):
    page = open_page("assistant-ui")
    page.call("send", text="mixed 5")
    assert_shown(page, page.call("regenerate"))
    assert Turn.objects.count() == 2
