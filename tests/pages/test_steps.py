"""The steps of a reply on the page: tool calls with their results, and reasoning, folded."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import timedelta
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import translation
from playwright.sync_api import Browser, Locator, Route, expect

from chatmemory import services
from chatmemory.codec import MAX_STEP_CHARS
from chatmemory.models import Message
from chatmemory.pages.steps import MAX_PAGE_CHARS, MAX_TEXT_CHARS, RowSteps, steps_of_rows
from chatmemory.rendering.text import visible
from chatmemory.services import Actor, redact_message
from project import demo_suggestions
from tests.browsers import Chat
from tests.conftest import database_environment
from tests.factories import TALK, make_session, make_user
from tests.pages import test_browser, test_chat_js, test_widget
from tests.pages.test_browser import FORBIDDEN
from tests.pages.test_chat_js import row, running
from tests.pages.test_widget import HOST_CSS, HOST_PAGE, check_access, serve
from tests.payloads import PAYLOADS
from tests.servers import Server

login, browser = test_browser.login, test_browser.browser
page, scripted = test_chat_js.page, test_chat_js.scripted
host = test_widget.host

ASKED = {"role": "user", "content": "Will it rain?"}
REPLY = {"role": "assistant", "content": "No rain."}


def call(name: str = "weather", call_id: str = "c1", **args: Any) -> dict[str, Any]:
    return {"id": call_id, "name": name, "args": args}


def calling(*calls: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": [*calls], **fields}


def answering(text: str, call_id: str = "c1", **fields: Any) -> dict[str, Any]:
    return {"role": "tool", "content": text, "tool_call_id": call_id, **fields}


def shown(*messages: dict[str, Any], running: str | None = None) -> dict[int, RowSteps]:
    """Store messages; return the steps of those that have any, or that are folded, by seq."""
    make_session()
    services.append_messages(**TALK, messages=messages)
    return steps_of_rows(services.read_history(**TALK).rows, running=running)


def states(steps: RowSteps) -> list[tuple[str, str, str | None]]:
    """Return name, state and result of each step."""
    return [
        (entry.name, entry.state, entry.result.text if entry.result else None)
        for entry in steps.entries
    ]


@pytest.mark.django_db
def test_a_result_is_shown_with_its_call():
    steps = shown(ASKED, calling(call(city="Lisboa")), answering('{"rain":0}'), REPLY)
    assert [*steps] == [1, 2, 4]
    [entry] = steps[2].entries
    assert (entry.name, entry.state) == ("weather", "done")
    assert entry.args == '{\n  "city": "Lisboa"\n}'
    assert entry.result.text == '{\n  "rain": 0\n}'
    assert (entry.result.seq, entry.result.is_cut) == (3, False)
    assert not steps[1]
    assert not steps[4]


@pytest.mark.django_db
def test_parallel_calls_are_in_their_order_with_the_results_in_any_order():
    calls = [call("one", "c1"), call("two", "c2"), call("three", "c3")]
    failed = answering("No.", "c1", tool_status="error")
    steps = shown(ASKED, calling(*calls), answering("2", "c2"), failed, REPLY)
    assert states(steps[2]) == [
        ("one", "failed", "No."),
        ("two", "done", "2"),
        ("three", "missing", None),
    ]


@pytest.mark.django_db
def test_a_result_belongs_to_the_last_call_before_it_with_its_id():
    again = (calling(call("again")), answering("new"))
    steps = shown(answering("early"), ASKED, calling(call()), answering("old"), *again)
    assert states(steps[3]) == [("weather", "done", "old"), ("again", "done", "new")]
    assert states(steps[1]) == [("", "done", "early")]  # its call is on an earlier page


@pytest.mark.django_db
def test_a_second_result_of_a_call_is_a_step_of_its_own():
    steps = shown(ASKED, calling(call()), answering("one"), answering("two", name="weather"))
    assert states(steps[2]) == [("weather", "done", "one"), ("weather", "done", "two")]


@pytest.mark.django_db
def test_steps_of_messages_without_text_are_one_group_until_a_text_or_another_turn():
    thought = {"additional_kwargs": {"reasoning_content": "Hm."}}
    first = (calling(call("one")), answering("1"), calling(call("two"), **thought), answering("2"))
    texts = (calling(call("three"), content="And:"), answering("3"))
    steps = shown(ASKED, *first, *texts, REPLY, ASKED, calling(call("four")), answering("4"))
    assert [(entry.name, entry.seq, entry.is_thought) for entry in steps[2].entries] == [
        ("one", 2, False),
        ("", 4, True),
        ("two", 4, False),
    ]
    assert steps[2].entries[1].args == "Hm."
    assert [states(steps[seq]) for seq in (6, 10)] == [
        [("three", "done", "3")],
        [("four", "done", "4")],
    ]
    assert {4} & steps.keys() == set()


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("language", "milliseconds", "text"),
    [("en", 1_440, "1.4 s"), ("de", 1_440, "1,4 s"), ("en", 2_000, "2 s"), ("en", 40, "")],
)
def test_a_step_has_the_time_from_the_call_to_its_result(language, milliseconds, text):
    shown(ASKED, calling(call()), answering("rain"))
    at = Message.objects.get(seq=2).created_at + timedelta(milliseconds=milliseconds)
    Message.objects.filter(seq=3).update(created_at=at)
    with translation.override(language):
        steps = steps_of_rows(services.read_history(**TALK).rows, running=None)
    assert steps[2].entries[0].duration == text


@pytest.mark.django_db
def test_invisible_characters_are_marked():
    steps = shown(
        calling(call(city="a\u202eb")), answering("a\u202eb"), answering("", name="a\u202eb")
    )
    entry, orphan = steps[1].entries
    assert entry.args == '{\n  "city": "a⟦U+202E⟧b"\n}'
    assert entry.result.text == "a⟦U+202E⟧b"
    assert orphan.name == "ab"


@pytest.mark.django_db
def test_a_call_of_the_running_turn_is_running():
    make_session()
    services.append_messages(**TALK, messages=[ASKED, calling(call())], client_id="t1")
    Message.objects.update(turn=1)
    rows = services.read_history(**TALK).rows
    assert states(steps_of_rows(rows, running="t1")[2]) == [("weather", "running", None)]
    for other in ("t2", None):
        assert states(steps_of_rows(rows, running=other)[2]) == [("weather", "missing", None)]


@pytest.mark.django_db
def test_a_redacted_or_unreadable_message_shows_no_arguments_and_no_result():
    reasoning = {"additional_kwargs": {"reasoning_content": "secret"}}
    messages = [ASKED, calling(call(card="secret"), **reasoning), answering("secret")]
    make_session()
    services.append_messages(**TALK, messages=messages)
    redact_message(**TALK, seq=3, reason="test")
    [_, asked] = steps_of_rows(services.read_history(**TALK).rows, running=None).values()
    assert asked.entries[0].result.redacted
    assert states(asked) == [("weather", "done", "")]
    Message.objects.filter(seq=2).update(quarantined=True)
    found = steps_of_rows(services.read_history(**TALK).rows, running=None)
    assert not found[2]
    assert "secret" not in str(found)


@pytest.mark.parametrize("text", ["[1] see below", "rain", '{"a": NaN', "1", "[" * 100_000])
@pytest.mark.django_db
def test_a_result_that_is_not_json_is_shown_as_it_is(text):
    steps = shown(calling(call()), answering(text))
    assert steps[1].entries[0].result.text == text[:MAX_TEXT_CHARS]


@pytest.fixture
def web(db) -> Client:
    """Return a client with Ann signed in."""
    client = Client()
    client.force_login(make_user("ann"))
    return client


def store(messages: Sequence[dict[str, Any]], key: str = "talk") -> None:
    """Store messages in a session of Ann."""
    by = Actor.user(User.objects.get(username="ann"))
    services.open_session(session_key=key, by=by)
    services.append_messages(session_key=key, messages=messages, by=by)


def test_the_page_has_steps_without_a_script(web):
    thought = {"type": "thinking", "thinking": "Hm, \u202erain."}
    store([ASKED, calling(call(city="Lisboa"), content=[thought]), answering("rain"), REPLY])
    page = web.get("/chat/talk/").content.decode()
    assert '<link rel="stylesheet" href="/static/chatmemory/element/steps.css">' in page
    text = " ".join(unescape(re.sub("<[^>]+>", " ", page[page.index("<article") :])).split())
    steps = 'weather Done Arguments { "city": "Lisboa" } Result rain'
    steps = f"Used 1 tool {steps}"  # hidden for one tool
    assert f"Assistant Reasoning Hm, ⟦U+202E⟧rain. {steps} Assistant No rain." in text
    assert page.count("data-seq=") == 3
    store([ASKED, REPLY], key="other")
    assert "steps.css" not in web.get("/chat/other/").content.decode()


def test_steps_are_text_and_never_html(web):
    messages = []
    for payload in PAYLOADS:
        content = [{"type": "thinking", "thinking": payload}]
        asking = calling(call(payload, payload, text=payload), content=content)
        messages += [asking, answering(payload, payload)]
    store(messages)
    page = web.get("/chat/talk/").content.decode()
    rows = page[page.index("<article") : page.rindex("</article>")]
    assert rows.count('class="cm-step ') == 2 * rows.count("data-result=") > 20
    tags = {*re.findall(r"<(\w+)", rows)}
    assert tags == {"article", "h2", "details", "summary", "div", "span", "p"}


@pytest.mark.django_db
def test_all_steps_of_a_page_share_a_limit_and_the_newest_are_whole():
    deep = "[" * 20 + "1," * 5_000 + "1" + "]" * 20
    steps = shown(calling(call(city="Lisboa")), *[answering(deep, f"x{n}") for n in range(40)])
    results = [entry.result for entry in steps[1].entries[1:]]
    assert sum(len(result.text) for result in results) == MAX_PAGE_CHARS
    assert (results[-1].text, results[-1].is_cut) == (deep, False)
    assert (results[0].text, results[0].is_cut) == ("", True)
    assert steps[1].entries[0].args_cut


@pytest.mark.django_db
def test_json_is_not_indented_when_the_time_of_the_person_is_spent(monkeypatch):
    monkeypatch.setattr("chatmemory.rendering.budget.PERSON_SECONDS", 0.0)
    make_session()
    services.append_messages(**TALK, messages=[answering('{"rain":0}')])
    rows = services.read_history(**TALK).rows
    steps = steps_of_rows(rows, running=None, person="ann")
    assert states(steps[1])[0][2] == '{"rain":0}'


def test_long_steps_are_truncated_with_a_link_to_the_whole(web):
    long = "x" * 2 * MAX_STEP_CHARS
    thought = {"additional_kwargs": {"reasoning_content": f"Hm. {long}"}}
    result = "y" * (MAX_TEXT_CHARS + 1) + "<end>"
    store([calling(call(text=long), content="Yes.", **thought), answering(result)])
    page = web.get("/chat/talk/").content.decode()
    assert page.count('<a href="/chat/talk/1/">Show the whole message</a>') == 2
    assert page.count('<a href="/chat/talk/2/">Show the whole message</a>') == 1
    assert long not in page
    assert "end&gt;" not in page
    whole = web.get("/chat/talk/1/").content.decode()
    assert whole == f'Hm. {long}\n\nYes.\n\nweather\n{{\n  "text": "{long}"\n}}'
    assert web.get("/chat/talk/2/").content.decode() == result


TURN = {"turn": "t1"}
IN_BROWSER = [pytest.mark.browser, pytest.mark.slow]


def asked(seq: int = 1, **fields: Any) -> dict[str, Any]:
    return row(seq, "Will it rain?", **{"client_id": "t1", **TURN, **fields})


def calls(seq: int, *given: tuple[str, str], text: str = "", **fields: Any) -> dict[str, Any]:
    """Return the row of an assistant that calls tools, given as id and name."""
    found = [
        {"id": i, "name": name, "args": '{"city":"Lisboa"}', "cut": False} for i, name in given
    ]
    return row(seq, text, role="assistant", calls=found, **{**TURN, **fields})


def result(seq: int, text: str, call: str = "c1", **fields: Any) -> dict[str, Any]:
    answered = {"call": call, "name": "weather", "failed": fields.pop("failed", False)}
    return row(seq, text, role="tool", result=answered, **{**TURN, **fields})


def reply(seq: int, **fields: Any) -> dict[str, Any]:
    return row(seq, "No rain.", role="assistant", **{**TURN, **fields})


def steps_in(chat: Chat) -> Locator:
    return chat.page.locator(".cm-step summary")


class TestInTheBrowser:
    pytestmark = IN_BROWSER

    def test_the_steps_of_a_live_turn_appear_as_they_are_stored(self, scripted):
        script, chat = scripted
        script.welcome(asked(), running=running("t1"))
        script.emit("message", **calls(2, ("c1", "weather")))
        event = {"kind": "tool", "name": "weather", "state": "started"}
        script.emit("delta", turn="t1", step=1, event=event)
        expect(steps_in(chat)).to_have_text(["weather Running…"])
        expect(chat.page.locator(".cm-activity")).to_have_count(0)  # one line names the tool
        expect(chat.page.get_by_text("Used 1 tool")).to_be_hidden()
        steps_in(chat).click()
        arguments = chat.page.get_by_role("group", name="Arguments")
        expect(arguments).to_have_text('{\n  "city": "Lisboa"\n}', use_inner_text=True)
        arguments.focus()
        script.emit("message", **result(3, '{"rain":[0,1]}'))
        expect(steps_in(chat)).to_have_text(["weather Done"])
        expect(arguments).to_be_focused()
        answer = chat.page.get_by_role("group", name="Result")
        expect(answer).to_have_text('{\n  "rain": [\n    0,\n    1\n  ]\n}', use_inner_text=True)
        answer.focus()
        script.emit("message", **reply(4))
        script.session(last_seq=4, revision=1)
        chat.expect_rows("Will it rain?", "No rain.")
        expect(answer).to_be_focused()
        for scheme in ("light", "dark"):
            chat.page.emulate_media(color_scheme=scheme)
            check_access(chat.page, "chat-memory")

    @pytest.mark.long
    def test_parallel_calls_are_in_their_order(self, scripted):
        script, chat = scripted
        both = calls(2, ("a", "first"), ("b", "second"))
        script.welcome(asked(), both, running=running("t1"))
        expect(steps_in(chat)).to_have_text(["first Running…", "second Running…"])
        script.emit("message", **result(3, "2", "b"))
        expect(steps_in(chat)).to_have_text(["first Running…", "second Done"])
        script.emit("message", **result(4, "No.", "a", failed=True))
        expect(steps_in(chat)).to_have_text(["first Failed", "second Done"])

    @pytest.mark.long
    def test_a_call_without_a_result_shows_so_when_the_turn_has_ended(self, scripted):
        script, chat = scripted
        script.welcome(asked(), calls(2, ("c1", "weather")), running=running("t1"))
        expect(steps_in(chat)).to_have_text(["weather Running…"])
        script.emit("message", **row(3, "", role="assistant", status="interrupted", **TURN))
        script.session(last_seq=3, revision=1)
        expect(steps_in(chat)).to_have_text(["weather No result"])
        expect(chat.page.get_by_text("Stopped before the end.")).to_be_visible()

    @pytest.mark.long
    def test_the_ids_of_calls_may_repeat_in_another_turn(self, scripted):
        script, chat = scripted
        later = {"turn": "t2"}
        rows = [asked(), calls(2, ("c1", "old")), result(3, "was"), reply(4)]
        rows += [asked(5, client_id="t2", **later), calls(6, ("c1", "new"), **later)]
        script.welcome(*rows, running=running("t2"))
        expect(steps_in(chat)).to_have_text(["old Done", "new Running…"])
        for seq, text in ((7, "is"), (8, "again")):
            script.emit("message", **result(seq, text, **later))
        expect(steps_in(chat)).to_have_text(["old Done", "new Done", "weather Done"])

    @pytest.mark.long
    def test_a_result_joins_its_call_when_the_earlier_messages_are_loaded(self, scripted):
        script, chat = scripted
        script.welcome(result(3, "sun"), reply(4), first_seq=1, last_seq=4)
        expect(steps_in(chat)).to_have_text(["weather Done"])
        expect(chat.page.get_by_role("article").first).to_have_attribute("data-seq", "3")
        fetch = script.wait_for("fetch")  # without a click, because the log has room
        script.emit("ok", id=fetch["id"], messages=[asked(), calls(2, ("c1", "weather"))])
        expect(chat.page.locator("[data-seq='3']")).to_have_count(0)
        expect(steps_in(chat)).to_have_text(["weather Done"])
        steps_in(chat).click()
        boxes = chat.page.locator(".cm-step-box")
        expect(boxes).to_have_text([re.compile("Lisboa"), "sun"])

    def test_tools_without_a_text_between_them_are_one_folded_group(self, scripted):
        script, chat = scripted
        script.welcome(asked(), calls(2, ("a", "first")), running=running("t1"))
        first = {"created_at": "2026-01-01T00:00:01.500Z", "call": "a"}
        script.emit("message", **result(3, "1", **first))
        expect(steps_in(chat)).to_have_text(["first 1.5 s Done"])
        script.emit("message", **calls(4, ("b", "second"), ("c", "third")))
        group = chat.page.locator(".cm-steps > summary")
        expect(group).to_have_text("Using second…")
        expect(steps_in(chat).first).to_be_hidden()
        script.emit("message", **result(5, "No.", "b", failed=True))
        expect(group).to_have_text("Using third… 1 failed")
        script.emit("message", **result(6, "3", "c"))
        expect(group).to_have_text("Used 3 tools 1 failed")
        script.emit("message", **reply(7))
        script.session(last_seq=7, revision=1)
        chat.expect_rows("Will it rain?", "No rain.")
        expect(chat.page.get_by_role("article")).to_have_count(3)
        for scheme in ("light", "dark"):
            chat.page.emulate_media(color_scheme=scheme)
            check_access(chat.page, "chat-memory")
        group.press("Enter")
        shown = ["first 1.5 s Done", "second Failed", "third Done"]
        expect(steps_in(chat).filter(visible=True)).to_have_text(shown)

    def test_a_step_that_is_read_stays_open_when_its_group_begins(self, scripted):
        script, chat = scripted
        script.welcome(asked(), calls(2, ("a", "first")), running=running("t1"))
        steps_in(chat).click()
        arguments = chat.page.get_by_role("group", name="Arguments")
        arguments.focus()
        script.emit("message", **result(3, "1", "a"))
        script.emit("message", **calls(4, ("b", "second")))
        expect(chat.page.locator(".cm-steps > summary")).to_have_text("Using second…")
        expect(arguments.first).to_be_focused()
        expect(chat.page.get_by_role("group", name="Result")).to_be_visible()

    def test_reasoning_is_folded_above_the_text(self, scripted):
        script, chat = scripted
        thought = {"text": "Hm.\n\nNo clouds.", "cut": False}
        script.welcome(asked(), reply(2, reasoning=thought))
        summary = steps_in(chat)
        expect(summary).to_have_text("Reasoning")
        text = chat.text("No rain.")
        assert summary.bounding_box()["y"] < text.bounding_box()["y"]
        thoughts = chat.page.get_by_role("group", name="Reasoning")
        expect(thoughts).to_be_hidden()
        summary.focus()
        chat.page.keyboard.press("Enter")
        expect(thoughts).to_have_text("Hm.\n\nNo clouds.", use_inner_text=True)
        chat.page.keyboard.press("Tab")
        expect(thoughts).to_be_focused()
        check_access(chat.page, "chat-memory")

    def test_a_redacted_message_loses_its_steps(self, scripted):
        script, chat = scripted
        thought = {"text": "secret", "cut": False}
        call = calls(2, ("c1", "weather"), reasoning=thought)
        script.welcome(asked(), call, result(3, "secret"), reply(4))
        expect(steps_in(chat)).to_have_text(["Reasoning", "weather Done"])
        removed = row(2, "", role="assistant", revision=5, redacted=True, **TURN)
        script.emit("message", **removed)
        script.emit("message", **result(3, "", revision=6, redacted=True))
        expect(steps_in(chat)).to_have_text(["weather Done"])
        steps_in(chat).click()
        expect(chat.page.get_by_text("removed by an operator").filter(visible=True)).to_have_count(
            2
        )
        expect(chat.page.locator("body")).not_to_contain_text("secret")

    def test_steps_from_a_hostile_model_are_text(self, scripted):
        script, chat = scripted
        rows = []
        for number, payload in enumerate(PAYLOADS):
            given = {"id": f"c{number}", "name": payload[:100], "args": payload, "cut": False}
            thought = {"text": payload, "cut": True}
            rows += [
                calls(2 * number + 1) | {"calls": [given], "reasoning": thought},
                result(2 * number + 2, payload, f"c{number}"),
            ]
        script.welcome(*rows)
        expect(steps_in(chat)).to_have_count(2 * len(PAYLOADS))
        expect(chat.page.locator(FORBIDDEN)).to_have_count(0)
        marked = [visible(payload) for payload in PAYLOADS]
        texts = chat.page.locator(".cm-step-box").all_text_contents()
        assert texts[0::3] == [f"{text}…" for text in marked]
        assert texts[1::3] == texts[2::3] == marked
        names = chat.page.locator(".cm-step-name").all_text_contents()
        assert names == [visible(payload[:100]) for payload in PAYLOADS]

    def test_a_widget_loads_the_style_of_steps_into_its_shadow_root(self, host):
        script = serve(host, HOST_PAGE, HOST_CSS)
        script.welcome(asked(), calls(2, ("c1", "weather")), result(3, "sun"), reply(4))
        chat = Chat(host)
        expect(steps_in(chat)).to_have_text(["weather Done"])
        steps_in(chat).click()
        box = host.get_by_role("group", name="Result")
        size = "node => [getComputedStyle(node).fontSize, getComputedStyle(node).overflowY]"
        assert box.evaluate(size) == ["13.12px", "auto"]  # also if the host's rem is 10 pixels
        check_access(host, "chat-memory")

    def test_a_page_without_steps_does_not_load_what_draws_them(self, scripted):
        script, chat = scripted
        loaded: list[str] = []
        chat.page.on("request", lambda request: loaded.append(request.url))
        script.welcome(row(1, "hi"), row(2, "hello", role="assistant"))
        chat.expect_rows("hi", "hello")
        assert not [url for url in loaded if "steps" in url]


@pytest.fixture
def server(transactional_db: None, tmp_path: Path) -> Iterator[Server]:
    """A server with the bot of the demo, whose forecast calls two tools."""
    bot = "project.demo_bot.answer"
    server = Server(database_environment(), tmp_path / "log", RESPONDER=bot)
    yield server
    server.kill()


@pytest.fixture
def history(login: str) -> None:
    """A session `long` of Ann, in which a page of 50 messages begins with a result."""
    talk = [{"role": "user", "content": str(number)} for number in range(48)]
    failed = answering("No.", "c2", name="forecast", tool_status="error")
    thought = {"additional_kwargs": {"reasoning_content": "Hm."}}
    asked = [calling(call(city="Lisboa"), call("forecast", "c2"), **thought), answering("rain")]
    store([ASKED, *asked, failed, *talk, REPLY], key="long")


@pytest.mark.browser
@pytest.mark.long
@pytest.mark.django_db(transaction=True)
class TestOnTheServer:
    @pytest.fixture
    def desk(self, server: Server, browser: Browser, login: str) -> Iterator[test_browser.Desk]:
        """A desk whose server runs. Fails the test if the browser reported a problem."""
        server.start()
        desk = test_browser.Desk(server, browser, login)
        yield desk
        assert desk.problems == []

    def test_the_forecast_of_the_demo_has_two_steps_live_and_after_a_reload(self, desk):
        chat = desk.open()
        chat.send(demo_suggestions.TOOL)
        expect(steps_in(chat)).to_have_text(["find_place Running…"])
        expect(chat.page.get_by_text("Using forecast…")).to_be_visible()
        expect(chat.page.locator(".cm-assistant strong", has_text="sunny")).to_be_visible()
        done = [re.compile(rf"^{name} [\d.]+ s Done$") for name in ("find_place", "forecast")]
        expect(steps_in(chat)).to_have_text(done)
        expect(steps_in(chat).first).to_be_hidden()
        live, group = open_all(chat), chat.page.locator(".cm-steps")
        lines = steps_in(chat).all_inner_texts()
        nodes = group.evaluate(NODES)
        chat.page.reload()
        expect(chat.page.get_by_text("Used 2 tools")).to_be_visible()
        expect(steps_in(chat).first).to_be_hidden()
        chat.expect_live()
        assert open_all(chat) == live
        assert steps_in(chat).all_inner_texts() == lines
        assert group.evaluate(NODES) == nodes
        assert '"rain_mm": 6' in live[3]

    @pytest.mark.usefixtures("history")
    def test_the_steps_that_the_server_rendered_remain(self, desk):
        page = desk.page()
        held: list[Route] = []
        page.route("**/chat.js", lambda route: held.append(route))
        page.goto(desk.url("long"), wait_until="commit")
        chat = Chat(page)
        expect(steps_in(chat)).to_have_text(["forecast Failed"])
        page.wait_for_function("document.querySelector('chat-memory') !== null")
        steps_in(chat).click()
        page.evaluate("document.querySelector('.cm-step').kept = true")
        held[0].continue_()
        chat.expect_live()
        expect(page.get_by_role("group", name="Result")).to_have_text("No.")
        assert page.evaluate("document.querySelector('.cm-step').kept")
        page.get_by_role("button", name="Load earlier messages").click()
        expect(steps_in(chat)).to_have_text(["Reasoning", "weather Done", "forecast Failed"])


NODES = """group => [group, ...group.querySelectorAll("*")].map(
    (node) => `${node.localName} ${node.className} ${node.dataset.step} ${node.role}`)"""
"""The nodes of a group, without texts."""


def open_all(chat: Chat) -> list[str]:
    """Open all steps; return the texts in them."""
    for group in chat.page.locator(".cm-steps:not([open]) > summary").all():
        group.click()
    for step in chat.page.locator(".cm-step > summary").all():
        step.click()
    return chat.page.locator(".cm-step-box").all_inner_texts()
