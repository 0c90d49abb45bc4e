"""Titles by the setting TITLE: after a complete turn, and never instead of another change."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from asgiref.sync import sync_to_async as db
from django.db import connection, transaction
from django.db.models import F
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage

from chatmemory import services
from chatmemory.live import titles as live_titles
from chatmemory.live.runner import runner
from chatmemory.models import Session, Turn
from chatmemory.services.titles import TITLE_TURNS, read_untitled, store_title
from chatmemory.services.turns.claims import Claim
from tests import responders_for_tests, titles_for_tests
from tests.factories import BY, make_messages
from tests.locking import thread, waits_for_a_lock
from tests.servers import (
    DEADLINE,
    Connection,
    Tab,
    connected,
    live_process,
    person_with_talk,
    start_servers,
    use_responder,
    wait_for,
)

DOCS = Path(__file__).resolve().parent.parent.parent / "docs/howto"

pytestmark = pytest.mark.django_db(transaction=True)

ann = person_with_talk
live = live_process
serve = start_servers


@pytest.fixture(autouse=True)
def _forget_calls():
    titles_for_tests.reset()
    yield
    titles_for_tests.GO.set()


@pytest.fixture
def titles(live, settings):
    """Select the function of `tests.titles_for_tests` that gives titles."""

    def select(name):
        path = f"tests.titles_for_tests.{name}"
        settings.CHATMEMORY = {**settings.CHATMEMORY, "TITLE": path}

    return select


def begin(person, text="my dog", client_id="c1"):
    runner.enable()
    admitted = services.admit_turn(
        **person.talk, client_id=client_id, content=text, owner=runner.owner
    )
    runner.launch(admitted.claim)


def turn(person, text="my dog", client_id="c1", status="complete"):
    """Run a turn to its end."""
    begin(person, text, client_id)
    ended = Turn.objects.filter(client_id=client_id, ended_at__isnull=False)
    wait_for(ended.exists, "the turn does not end")
    assert ended.get().status == status


def title():
    return Session.objects.get().title


def wait_for_title(expected):
    wait_for(lambda: title() == expected, f"the title is not {expected!r}")


def wait_until_called():
    assert titles_for_tests.BEGUN.wait(DEADLINE)


def calls_end():
    """Let the functions return, and wait until nothing more can store a title."""
    titles_for_tests.GO.set()
    wait_for(has_no_task, "a task does not end")


def has_no_task():
    # First, what an ended run has submitted becomes a task.
    runner._thread.submit(asyncio.sleep(0)).result(DEADLINE)
    return not runner._thread._tasks


def test_the_first_complete_turn_gives_a_title(ann, titles):
    titles("first_words")
    revision = Session.objects.get().revision
    turn(ann)
    wait_for_title("About my dog")
    assert [make_messages("my dog", "my dog ")] == titles_for_tests.CALLS
    calls_end()
    turn(ann, "my cat", "c2")
    calls_end()
    assert (title(), len(titles_for_tests.CALLS)) == ("About my dog", 1)
    assert Session.objects.get().revision > revision


@pytest.mark.parametrize("name", ["slow", "an_object"])
def test_the_function_may_be_async(ann, titles, name):
    titles(name)
    turn(ann)
    wait_until_called()
    titles_for_tests.GO.set()
    wait_for_title("About it")


def test_a_sync_function_may_query_and_read_the_owner(ann, titles):
    titles("owners_name")
    turn(ann)
    wait_for_title(f"2 messages of {ann.user}")


def test_without_the_setting_nothing_is_read(ann, live, monkeypatch):
    read = []
    monkeypatch.setattr(live_titles, "aread_untitled", lambda **_: read.append(1))
    turn(ann)
    calls_end()
    assert (title(), read) == ("", [])


@pytest.mark.parametrize("responder", ["failing", "filtered"])
def test_a_turn_that_fails_gives_no_title_but_the_next_one_does(ann, titles, settings, responder):
    titles("first_words")
    use_responder(settings, responder)
    turn(ann, status="failed")
    calls_end()
    assert titles_for_tests.CALLS == []
    use_responder(settings, "echo")
    turn(ann, "again", "c2")
    wait_for_title("About my dog")


def test_a_stopped_turn_gives_no_title(ann, titles, settings):
    titles("first_words")
    use_responder(settings, "slow")
    begin(ann)
    assert responders_for_tests.BEGUN.wait(DEADLINE)
    services.stop_turn(**ann.talk, turn="c1")
    wait_for(lambda: Turn.objects.get().ended_at is not None, "the turn does not end")
    calls_end()
    assert titles_for_tests.CALLS == []


def test_a_reply_without_text_gives_no_title(ann, titles, settings):
    titles("first_words")
    responders_for_tests.GO.set()
    use_responder(settings, "silent")
    turn(ann)
    calls_end()
    assert titles_for_tests.CALLS == []


@pytest.mark.parametrize("name", ["failing", "blank", "number"])
def test_a_function_without_a_title_is_called_for_the_first_turns_only(ann, titles, name, caplog):
    titles(name)
    for number in range(TITLE_TURNS + 2):
        turn(ann, f"words {number}", f"c{number}")
        calls_end()
    assert (title(), len(titles_for_tests.CALLS)) == ("", TITLE_TURNS)
    assert "secret" not in caplog.text
    assert "words" not in caplog.text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("failing", "builtins.RuntimeError"),
        ("number", "TITLE must return a str, not int"),
        ("missing", "builtins.ImportError"),
    ],
)
def test_a_failure_is_logged_without_content(ann, titles, caplog, name, text):
    titles(name)
    turn(ann, "my secret")
    calls_end()
    [record] = [one for one in caplog.records if one.name == live_titles.__name__]
    assert record.levelno == logging.ERROR
    assert text in record.getMessage()
    assert "secret" not in caplog.text


@pytest.mark.parametrize("name", ["slow", "blocking"])
def test_a_slow_function_delays_no_turn_and_is_given_up(ann, titles, caplog, monkeypatch, name):
    titles(name)
    turn(ann)
    wait_until_called()
    turn(ann, "again", "c2")
    assert title() == ""
    monkeypatch.setattr(live_titles, "TITLE_SECONDS", 0.01)
    turn(ann, "and again", "c3")
    wait_for(lambda: "turn c3: TITLE failed: builtins.TimeoutError" in caplog.text, "no time limit")


def test_a_sync_function_uses_no_thread_of_responders(ann, titles):
    titles("own_thread")
    turn(ann)
    wait_for(title, "there is no title")
    assert title().startswith("chatmemory-titles")


def test_a_title_is_one_line_without_invisible_characters(ann, titles):
    titles("untidy")
    turn(ann)
    wait_for(title, "there is no title")
    assert title() == "A dog called " + "x" * 187


def rename(person):
    services.update_session(**person.talk, title="Mine")


def clear(person):
    services.clear_session(**person.talk, reason="test")


def purge(person):
    services.purge_session(**person.talk, reason="test")


def hold(person):
    services.hold_session(**server(person), reason="test")


def redact(person):
    services.redact_message(**server(person), seq=1, reason="test")


def trim(person):
    services.append_messages(**person.talk, messages=make_messages("c", "d"))
    services.trim_session(**person.talk, keep_last=2, reason="test")


def edit(person):
    new = {"client_id": "c2", "content": "x", "replaces": 1, "expect_seq": 1}
    services.admit_turn(**person.talk, **new, owner="another process")


def server(person):
    return {**person.talk, "by": BY, "scope": Session.objects.get().scope}


def change_epoch(person):
    Session.objects.update(epoch=F("epoch") + 1)


CHANGES = [rename, clear, purge, hold, redact, trim, change_epoch]


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_while_the_function_runs_wins(ann, titles, change):
    titles("slow")
    turn(ann)
    wait_until_called()
    change(ann)
    calls_end()
    assert title() == ("Mine" if change is rename else "")


@pytest.mark.parametrize("change", [*CHANGES, edit])
def test_a_change_since_the_session_was_read_wins(ann, live, change):
    turn(ann)
    session = Session.objects.get()
    change(ann)
    assert not store_title(session=session, title="About it")
    assert title() == ("Mine" if change is rename else "")


@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite cannot list who waits for a lock")
def test_a_rename_that_is_not_committed_yet_wins(ann, live):
    turn(ann)
    session = Session.objects.get()
    with thread() as call:
        with transaction.atomic():
            rename(ann)
            stored = call(store_title, session=session, title="About it")
            wait_for(waits_for_a_lock, "it does not wait for the lock")
        assert not stored.result()
    assert title() == "Mine"


def test_the_title_of_an_erased_session_is_not_stored(ann, live):
    turn(ann)
    session = Session.objects.get()
    services.erase_person(by=BY, scope=session.scope, reason="test")
    assert not store_title(session=session, title="About it")


@pytest.mark.parametrize("change", [rename, hold, redact])
def test_the_function_is_not_called_if_its_title_could_not_be_stored(ann, titles, change):
    services.append_messages(**ann.talk, messages=make_messages("a", "b"))
    change(ann)
    titles("first_words")
    turn(ann)
    calls_end()
    assert titles_for_tests.CALLS == []


def test_a_turn_of_an_earlier_epoch_gives_no_title(ann, live):
    services.append_messages(**ann.talk, messages=make_messages("a", "b"))
    session = Session.objects.get()
    assert read_untitled(claim=claim_of(session)) is not None
    assert read_untitled(claim=replace(claim_of(session), epoch=session.epoch + 1)) is None


def claim_of(session):
    return Claim(
        turn_pk=1,
        client_id="c1",
        session_pk=session.pk,
        scope=session.scope,
        key=session.key,
        epoch=session.epoch,
        fence=1,
        user_seq=1,
        owner="",
    )


def test_a_drain_does_not_wait_for_a_title(ann, titles):
    titles("slow")
    turn(ann)
    wait_until_called()
    assert asyncio.run(runner.drain(0))
    assert not titles_for_tests.GO.is_set()
    runner.shut_down()
    assert title() == ""
    titles("first_words")
    turn(ann, "again", "c2")  # another process gives the title
    wait_for_title("About my dog")


def test_a_draining_process_calls_no_function(ann, titles, settings):
    titles("first_words")
    use_responder(settings, "slow")
    begin(ann)
    assert responders_for_tests.BEGUN.wait(DEADLINE)
    threading.Timer(0.2, responders_for_tests.GO.set).start()
    assert asyncio.run(runner.drain(DEADLINE))
    calls_end()
    assert (Turn.objects.get().status, titles_for_tests.CALLS) == ("complete", [])


async def test_open_pages_show_the_title_immediately(ann, titles):
    titles("first_words")
    async with connected(tab := Tab(ann)):
        await tab.send("my dog")
        assert (await tab.until("session", title="About my dog"))["last_seq"] == 2


@pytest.mark.slow
async def test_of_two_processes_one_stores_its_title(ann, serve):
    servers = await db(serve)(2, TITLE="tests.titles_for_tests.after_two_turns")
    async with connected(*(tabs := [Connection(server, ann) for server in servers])):
        for number, tab in enumerate(tabs):
            await tab.send("hi", f"c{number}")
            await tab.idle(2 * number + 2)
        await db(wait_for)(title, "there is no title")
        stored = await db(title)()
        for tab in tabs:
            await tab.until("session", title=stored)
    assert stored in {f"Process {server.pid}" for server in servers}


async def test_the_example_in_the_docs_returns_a_title(monkeypatch):
    model = GenericFakeChatModel(messages=iter([AIMessage("A dog")]))
    monkeypatch.setattr("langchain.chat_models.init_chat_model", lambda name: model)
    examples = re.findall(r"```python\n(.*?)```", (DOCS / "titles.md").read_text(), re.DOTALL)
    [lines] = [lines for lines in examples if "init_chat_model" in lines]
    names: dict[str, object] = {}
    exec(lines, names)  # noqa: S102  # our own page
    assert await names["title"](make_messages("my dog", "woof"), Session()) == "A dog"
