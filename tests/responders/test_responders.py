"""Every kind of responder that RESPONDER can name, and the offline demo model."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import openai
import pytest
from asgiref.sync import sync_to_async
from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string
from langchain_core import exceptions as langchain_exceptions
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableGenerator, RunnableLambda
from langchain_core.runnables.history import RunnableWithMessageHistory
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph

from chatmemory import errors, services
from chatmemory.codec import Question
from chatmemory.errors import (
    ContextTooLong,
    ModelAccessDenied,
    ModelError,
    ModelNotFound,
    ModelRateLimited,
    ModelTimeout,
    ModelUnavailable,
)
from chatmemory.langchain import DjangoChatMessageHistory
from chatmemory.models import Session
from chatmemory.responders import Finished, Progress, Request, Text, demo, finding
from chatmemory.services.turns.run_context import run_context
from tests.factories import make_session
from tests.scripted import ScriptedModel

HELLO = [{"role": "user", "content": "hello"}]
MADE: dict[str, Any] = {}
"""The object that `factory` returns; each test sets its own."""


class Provider(ThreadingHTTPServer):
    """A local server with the API of a provider, which streams the given replies."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.says: list[list[dict[str, Any]] | tuple[int, str]] = []
        """For each future request: the deltas of the reply, or the status and code of an error."""
        self.asked: list[dict[str, Any]] = []
        self.pause = 0.0
        self.gone = threading.Event()
        """Set when a client disconnected during a reply."""

    def model(self, **kwargs: Any) -> ChatOpenAI:
        defaults = {"model": "gpt-test", "api_key": "none", "max_retries": 0, "timeout": 5}
        url = f"http://127.0.0.1:{self.server_port}/v1"
        return ChatOpenAI(**{**defaults, "base_url": url, **kwargs})


class _Handler(BaseHTTPRequestHandler):
    server: Provider

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append(json.loads(body))
        says = self.server.says.pop(0)
        if isinstance(says, tuple):
            status, code = says
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps({"error": {"message": "No.", "code": code}}).encode())
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        try:
            for delta in says:
                time.sleep(self.server.pause)
                self.send({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
            self.send({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
            usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
            self.send({"choices": [], "usage": usage})
            self.wfile.write(b"data: [DONE]\n\n")
        except OSError:
            self.server.gone.set()

    def send(self, chunk: dict[str, Any]) -> None:
        head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1}
        data = json.dumps({**head, "model": "gpt-test", **chunk})
        self.wfile.write(f"data: {data}\n\n".encode())
        self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


def words(*pieces: str) -> list[dict[str, Any]]:
    return [{"role": "assistant", "content": ""}, *({"content": piece} for piece in pieces)]


def call(name: str, arguments: str) -> list[dict[str, Any]]:
    """Return the deltas of a tool call, with its arguments in two pieces as providers send them."""
    function = {"name": name, "arguments": ""}
    head = {"index": 0, "id": "call_1", "type": "function", "function": function}
    middle = len(arguments) // 2
    return [{"role": "assistant", "content": None, "tool_calls": [head]}] + [
        {"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}
        for piece in (arguments[:middle], arguments[middle:])
    ]


@pytest.fixture
def provider() -> Iterator[Provider]:
    with Provider() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    yield
    MADE.clear()
    finding._find_responder.cache_clear()


def factory(session: Session) -> Any:
    return MADE["runnable"]


async def async_factory(session: Session) -> Any:
    return MADE["runnable"]


def for_two_bots(session: Session) -> Any:
    return MADE[session.metadata["bot"]]


async def echo(messages: list[dict[str, object]], session: Session) -> AsyncIterator[str]:
    for word in (session.key, ": ", str(messages[-1]["content"])):
        yield word


class Greeter:
    """An object whose call is an async generator."""

    async def __call__(self, messages: object, session: Session) -> AsyncIterator[str]:
        yield f"hello {session.key}"


async def with_rows(messages: object, session: Session) -> AsyncIterator[Any]:
    yield "I look"
    yield {"role": "assistant", "content": "I look it up.", "tool_calls": [{"id": "1"}]}
    yield {"role": "tool", "content": "42", "tool_call_id": "1"}
    yield "It is "
    yield "42."


async def with_a_result_at_the_end(messages: object, session: Session) -> AsyncIterator[Any]:
    yield "Let me see."
    yield {"role": "tool", "content": "42", "tool_call_id": "1"}


async def as_user(messages: object, session: Session) -> AsyncIterator[Any]:
    yield {"role": "user", "content": "I am you"}


async def with_numbers(messages: object, session: Session) -> AsyncIterator[Any]:
    yield 42


async def refused(messages: object, session: Session) -> AsyncIterator[str]:
    yield "I"
    raise ConnectionRefusedError


greeter = Greeter()
upper = RunnableLambda(lambda given: given["input"].upper())
a_number = 42


def request(messages: Any = HELLO, *, answers: Question | None = None, **columns: Any) -> Request:
    session = Session(scope="server", key="talk", **columns)
    return Request(session=session, turn="turn-1", messages=messages, answers=answers)


async def ask(
    responder: str, settings: Any, asked: Request | None = None
) -> tuple[list[list[str]], list[dict[str, Any]]]:
    """Return the streamed pieces of each step, and the messages that ended the steps."""
    settings.CHATMEMORY = {**settings.CHATMEMORY, "RESPONDER": responder}
    steps: list[list[str]] = [[]]
    messages = []
    async with aclosing(finding.find()(asked or request())) as items:
        async for item in items:
            match item:
                case Text(text):
                    steps[-1].append(text)
                case Finished(message):
                    messages.append(message)
                    steps.append([])
    assert steps.pop() == []
    return steps, messages


async def ask_runnable(
    runnable: Any, settings: Any, asked: Request | None = None
) -> tuple[list[list[str]], list[dict[str, Any]]]:
    MADE["runnable"] = runnable
    return await ask("tests.responders.test_responders.factory", settings, asked)


async def test_an_async_generator_streams_its_text(settings):
    steps, messages = await ask("tests.responders.test_responders.echo", settings)
    assert steps == [["talk", ": ", "hello"]]
    assert messages == [{"role": "assistant", "content": "talk: hello"}]


async def test_an_object_may_be_an_async_generator(settings):
    _, [message] = await ask("tests.responders.test_responders.greeter", settings)
    assert message["content"] == "hello talk"


async def test_a_factory_may_return_an_async_generator(settings):
    _, [message] = await ask_runnable(echo, settings)
    assert message["content"] == "talk: hello"


async def test_a_generator_may_yield_whole_rows(settings):
    steps, messages = await ask("tests.responders.test_responders.with_rows", settings)
    assert steps == [["I look"], [], ["It is ", "42."]]
    assert [m["content"] for m in messages] == ["I look it up.", "42", "It is 42."]


async def test_text_before_a_result_becomes_a_message_and_the_last_row_is_the_assistants(settings):
    _, messages = await ask("tests.responders.test_responders.with_a_result_at_the_end", settings)
    assert [m["role"] for m in messages] == ["assistant", "tool", "assistant"]
    assert [m["content"] for m in messages] == ["Let me see.", "42", ""]


@pytest.mark.parametrize(("name", "error"), [("as_user", ValueError), ("with_numbers", TypeError)])
async def test_a_generator_may_yield_only_assistant_and_tool_messages(name, error, settings):
    with pytest.raises(error):
        await ask(f"tests.responders.test_responders.{name}", settings)


async def test_a_chain_gets_the_input(settings):
    steps, [message] = await ask("tests.responders.test_responders.upper", settings)
    assert steps == [["HELLO"]]
    assert message == {"role": "assistant", "content": "HELLO"}


async def test_a_factory_may_be_async_and_sees_the_session(settings):
    MADE.update(runnable=upper, shop=echo, help=upper)
    _, [message] = await ask("tests.responders.test_responders.async_factory", settings)
    assert message["content"] == "HELLO"
    bots = "tests.responders.test_responders.for_two_bots"
    _, [message] = await ask(bots, settings, request(metadata={"bot": "shop"}))
    assert message["content"] == "talk: hello"


async def test_a_factory_must_return_a_responder(settings):
    with pytest.raises(TypeError, match="not int"):
        await ask_runnable(42, settings)


@pytest.mark.parametrize(
    ("responder", "said"),
    [
        ("tests.nowhere.bot", "cannot be imported"),
        ("tests.responders.test_responders.nobody", "cannot be imported"),
        ("demonstration", "cannot be imported"),
        ("tests.responders.test_responders.a_number", "not int"),
        ("nobody:model-1", "cannot be used"),
    ],
)
def test_an_invalid_responder_is_named_in_the_error(responder, said, settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "RESPONDER": responder}
    with pytest.raises(ImproperlyConfigured, match=said) as caught:
        finding.find()
    assert repr(responder) in str(caught.value)


def test_a_model_name_without_langchain_names_the_extra_to_install(settings, monkeypatch):
    monkeypatch.setitem(sys.modules, "langchain.chat_models", None)
    settings.CHATMEMORY = {**settings.CHATMEMORY, "RESPONDER": "openai:gpt-test"}
    with pytest.raises(ImproperlyConfigured, match=r"django-chatmemory\[models\]"):
        finding.find()


def test_the_responder_is_loaded_once(settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "RESPONDER": "demo"}
    assert finding.find() is finding.find()


@pytest.mark.slow
@pytest.mark.parametrize("responder", ["demo", "plain.talk"])
def test_langchain_is_imported_only_for_responders_that_need_it(responder, tmp_path):
    (tmp_path / "plain.py").write_text("async def talk(messages, session):\n    yield 'x'\n")
    code = (
        "import sys, django; from django.conf import settings; "
        "settings.configure(INSTALLED_APPS=['django.contrib.auth', "
        "'django.contrib.contenttypes', 'chatmemory'], "
        f"CHATMEMORY={{'RESPONDER': {responder!r}}}); django.setup(); "
        "from chatmemory import responders; responders.find(); print(*sys.modules)"
    )
    run = subprocess.run(  # noqa: S603  # our own code
        [sys.executable, "-c", code],
        env={"PYTHONPATH": f"{tmp_path}:{django_settings.BASE_DIR}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert not {"langchain", "langchain_core"} & {m.partition(".")[0] for m in run.stdout.split()}


async def test_a_chat_model_streams_as_the_provider_does(provider, settings):
    provider.says = [words("Hel", "lo ", "Mira")]
    window = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "my name is Mira"},
        {"role": "assistant", "content": "noted"},
        *HELLO,
    ]
    steps, [message] = await ask_runnable(provider.model(), settings, request(window))
    assert steps == [["Hel", "lo ", "Mira"]]
    assert message["content"] == "Hello Mira"
    assert message["usage"]["total_tokens"] == 7
    given = [(m["role"], m["content"]) for m in provider.asked[0]["messages"]]
    assert given == [(m["role"], m["content"]) for m in window]


async def test_a_model_name_finds_the_model(provider, settings, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{provider.server_port}/v1")
    provider.says = [words("Yes.")]
    steps, [message] = await ask("openai:gpt-test", settings)
    assert (steps, message["content"]) == ([["Yes."]], "Yes.")
    assert provider.asked[0]["model"] == "gpt-test"


async def test_a_bound_model_and_a_model_with_a_parser_get_messages(provider, settings):
    provider.says = [words("a", "b"), words("c", "d")]
    bound = provider.model().bind(stop=["x"]).with_retry()
    steps, [message] = await ask_runnable(bound | StrOutputParser(), settings)
    assert "ab" in "".join(steps[0])
    assert message == {"role": "assistant", "content": "ab"}
    steps, _ = await ask_runnable(provider.model().with_config(tags=["a"]), settings)
    assert steps == [["c", "d"]]


async def test_a_prompt_gets_messages_history_and_input(provider, settings):
    provider.says = [words("fine")]
    prompt = ChatPromptTemplate(
        [("system", "You speak of {input}"), ("placeholder", "{history}"), ("human", "{input}")]
    )
    window = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}, *HELLO]
    _, [message] = await ask_runnable(prompt | provider.model(), settings, request(window))
    assert message["content"] == "fine"
    given = [m["content"] for m in provider.asked[0]["messages"]]
    assert given == ["You speak of hello", "one", "two", "hello"]


async def test_unexecuted_tool_calls_are_not_the_end(provider, settings):
    provider.says = [call("order", '{"number": 7}')]
    _, [message, last] = await ask_runnable(provider.model(), settings)
    [made] = message["tool_calls"]
    assert (made["name"], made["args"], made["id"]) == ("order", {"number": 7}, "call_1")
    assert last == {"role": "assistant", "content": ""}


@pytest.mark.slow
async def test_text_arrives_while_the_model_still_streams(provider, settings):
    provider.says = [words("one ", "two ", "three")]
    provider.pause = 0.2
    MADE["runnable"] = provider.model()
    settings.CHATMEMORY = {
        **settings.CHATMEMORY,
        "RESPONDER": "tests.responders.test_responders.factory",
    }
    async with aclosing(finding.find()(request())) as items:
        assert await anext(items) == Text("one ")
        assert not provider.gone.is_set()
    assert await asyncio.to_thread(provider.gone.wait, 5)


THOUGHTS = {
    "anthropic": [{"type": "thinking", "thinking": "Hm. "}, {"type": "text", "text": "Yes."}],
    "openai": [{"type": "reasoning", "reasoning": "Hm. "}, {"type": "text", "text": "Yes."}],
}


async def stream(runnable: Any, settings: Any) -> list[Any]:
    MADE["runnable"] = runnable
    settings.CHATMEMORY = {
        **settings.CHATMEMORY,
        "RESPONDER": "tests.responders.test_responders.factory",
    }
    async with aclosing(finding.find()(request())) as items:
        return [item async for item in items]


@pytest.mark.parametrize("name", THOUGHTS)
async def test_reasoning_is_reported_as_progress_and_is_not_in_the_reply(name, settings):
    model = ScriptedModel(replies=[AIMessage(THOUGHTS[name])], given=[])
    *told, finished = await stream(model, settings)
    assert told == [
        Progress("thinking", "", "started"),
        Progress("thinking", "", "ended"),
        Text("Yes."),
    ]
    [thought, text] = finished.message["content"]
    assert "Hm. " in thought.values()
    assert text["text"] == "Yes."


async def test_reasoning_outside_of_the_content_is_reported_too(settings):
    async def think(messages: Any) -> AsyncIterator[AIMessageChunk]:
        for kwargs, text in (({"reasoning_content": "Hm. "}, ""), ({}, "Yes.")):
            yield AIMessageChunk(content=text, additional_kwargs=kwargs)

    *told, finished = await stream(RunnableGenerator(_of_chunks(think)), settings)
    assert told == [
        Progress("thinking", "", "started"),
        Progress("thinking", "", "ended"),
        Text("Yes."),
    ]
    assert finished.message["content"] == "Yes."
    assert finished.message["additional_kwargs"] == {"reasoning_content": "Hm. "}


def _of_chunks(think: Any) -> Any:
    async def transform(given: AsyncIterator[Any]) -> AsyncIterator[AIMessageChunk]:
        async for messages in given:
            async for chunk in think(messages):
                yield chunk

    return transform


async def test_a_generator_may_report_progress(settings):
    told = await stream(reporting, settings)
    assert told[:3] == [Progress("tool", "weather", "started"), Text("It "), Text("rains.")]


async def reporting(messages: object, session: Session) -> AsyncIterator[Any]:
    yield Progress("tool", "weather", "started")
    yield "It "
    yield "rains."


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (("cooking", "", ""), ValueError),
        (("tool", None, ""), TypeError),
        (("tool", "", 7), TypeError),
    ],
)
def test_invalid_progress_is_refused(given, error):
    with pytest.raises(error):
        Progress(*given)


def weather(city: str) -> str:
    """The weather in a city."""
    return f"Rain in {city}."


async def test_an_agent_stores_its_calls_results_and_reply_once(provider, settings):
    provider.says = [call("weather", '{"city": "Lisbon"}'), words("It ", "rains.")]
    create_agent = import_string("langchain.agents.create_agent")  # mypy crashes on its import
    agent = create_agent(provider.model(), tools=[weather])
    steps, messages = await ask_runnable(agent, settings)
    assert steps == [[], [], ["It ", "rains."]]
    assert [(m["role"], m["content"]) for m in messages] == [
        ("assistant", ""),
        ("tool", "Rain in Lisbon."),
        ("assistant", "It rains."),
    ]
    assert messages[0]["tool_calls"][0]["args"] == {"city": "Lisbon"}
    assert messages[1]["tool_call_id"] == "call_1"


async def test_a_graph_yields_only_new_messages_in_their_corrected_form(settings):
    def draft(state: MessagesState) -> dict[str, Any]:
        return {"messages": [*state["messages"], AIMessage("card 4111", id="reply")]}

    def correct(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage("card ****", id="reply"), HumanMessage("aside")]}

    graph = StateGraph(MessagesState)
    graph.add_node(draft)
    graph.add_node(correct)
    graph.add_edge(START, "draft")
    graph.add_edge("draft", "correct")
    graph.add_edge("correct", END)
    window = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, *HELLO]
    _, [message] = await ask_runnable(graph.compile(), settings, request(window))
    assert message["content"] == "card ****"


async def test_a_graph_that_updates_nothing_ends_with_an_empty_message(settings):
    graph = StateGraph(MessagesState)
    graph.add_node("silent", lambda state: None)
    graph.add_edge(START, "silent")
    graph.add_edge("silent", END)
    _, messages = await ask_runnable(graph.compile(), settings)
    assert messages == [{"role": "assistant", "content": ""}]


async def test_a_failing_provider_is_not_called_unreachable(provider, settings):
    provider.says = [(500, "server_error")]
    with pytest.raises(Exception, match="500") as caught:
        await ask_runnable(provider.model(), settings)
    assert not isinstance(caught.value, ModelUnavailable)


@pytest.mark.regression
@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        (429, "rate_limit_exceeded", ModelRateLimited),
        (429, "insufficient_quota", ModelAccessDenied),
        (401, "invalid_api_key", ModelAccessDenied),
        (403, "", ModelAccessDenied),
        (404, "model_not_found", ModelNotFound),
    ],
)
async def test_the_status_of_a_provider_has_a_class(provider, settings, status, code, error):
    provider.says = [(status, code)]
    with pytest.raises(error) as caught:
        await ask_runnable(provider.model(), settings)
    assert caught.value.retry is (error is ModelRateLimited)


@pytest.mark.regression
@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("ModelRateLimitError", ModelRateLimited),
        ("ModelAuthenticationError", ModelAccessDenied),
        ("ModelPermissionDeniedError", ModelAccessDenied),
        ("ModelNotFoundError", ModelNotFound),
        ("ModelTimeoutError", ModelTimeout),
        ("ModelConnectionError", ModelUnavailable),
        ("ContextOverflowError", ContextTooLong),
    ],
)
async def test_each_of_langchains_errors_has_a_class(settings, name, error):
    async def fail(messages: Any) -> AsyncIterator[Any]:
        yield AIMessageChunk(content="So far")
        raise getattr(langchain_exceptions, name)("secret")

    with pytest.raises(error):
        await ask_runnable(RunnableGenerator(transform=_of_chunks(fail)), settings)


CALL: Any = httpx.Request("POST", "http://provider.test/v1")


def refusal(status: int) -> Exception:
    response: Any = httpx.Response(status, request=CALL)
    return openai.APIStatusError("secret", response=response, body=None)


def wrapped(cause: Exception) -> Exception:
    error = RuntimeError("wrapped")
    error.__cause__ = cause
    return error


async def failing(messages: object, session: Session) -> AsyncIterator[str]:
    yield "So far"
    raise MADE["error"]


@pytest.mark.regression
@pytest.mark.parametrize(
    ("raised", "error"),
    [
        (openai.APITimeoutError(request=CALL), ModelTimeout),
        (httpx.ReadTimeout("secret"), ModelTimeout),
        (TimeoutError(), ModelTimeout),
        (openai.APIConnectionError(request=CALL), ModelUnavailable),
        (httpx.ConnectError("secret"), ModelUnavailable),
        (ConnectionResetError(), ModelUnavailable),
        (refusal(401), ModelAccessDenied),
        (refusal(403), ModelAccessDenied),
        (refusal(404), ModelNotFound),
        (refusal(429), ModelRateLimited),
        (wrapped(TimeoutError()), ModelTimeout),
    ],
)
async def test_each_failure_of_a_providers_client_has_a_class(settings, raised, error):
    MADE["error"] = raised
    with pytest.raises(error):
        await ask(f"{__name__}.failing", settings)


class Blocked(ModelError):
    code = "blocked"


async def blocked(messages: object, session: Session) -> AsyncIterator[str]:
    yield "So far"
    raise Blocked from TimeoutError()


async def filtered(messages: object, session: Session) -> AsyncIterator[dict[str, object]]:
    metadata = {"finish_reason": "content_filter"}
    yield {"role": "assistant", "content": "So far", "response_metadata": metadata}


async def test_a_reply_that_a_filter_ended_fails_after_its_message(settings):
    responder = f"{__name__}.filtered"
    settings.CHATMEMORY = {**settings.CHATMEMORY, "RESPONDER": responder}
    async with aclosing(finding.find()(request())) as items:
        assert (await anext(items)).message["content"] == "So far"
        with pytest.raises(errors.Blocked):
            await anext(items)


class HTTPStatusError(Exception):
    """Like the class of httpx."""

    status_code = 404


async def with_a_failing_request(messages: object, session: Session) -> AsyncIterator[str]:
    yield "So far"
    raise HTTPStatusError


@pytest.mark.parametrize(
    ("name", "error"), [("blocked", Blocked), ("with_a_failing_request", HTTPStatusError)]
)
async def test_an_error_of_the_responder_itself_is_not_a_provider_error(settings, name, error):
    with pytest.raises(error):
        await ask(f"{__name__}.{name}", settings)


@pytest.mark.slow
async def test_a_window_that_is_too_long_for_the_model_is_context_too_long(provider, settings):
    provider.says = [(400, "context_length_exceeded")]
    with pytest.raises(ContextTooLong):
        await ask_runnable(provider.model(), settings)


async def test_an_unreachable_provider_is_unavailable(provider, settings):
    closed = provider.model(base_url="http://127.0.0.1:9/v1")
    with pytest.raises(ModelUnavailable):
        await ask_runnable(closed, settings)
    with pytest.raises(ModelUnavailable):
        await ask("tests.responders.test_responders.refused", settings)


async def test_a_provider_that_does_not_answer_is_a_timeout(provider, settings):
    provider.says = [words("late")]
    provider.pause = 1
    with pytest.raises(ModelTimeout):
        await ask_runnable(provider.model(timeout=0.1), settings)


@pytest.mark.filterwarnings("ignore:RunnableWithMessageHistory")
@pytest.mark.django_db
async def test_a_responder_may_use_langchains_own_memory(provider, settings):
    provider.says = [words("noted")]
    by = services.SERVER
    await sync_to_async(make_session)("talk")
    admitted = await services.aadmit_turn(
        session_key="talk",
        client_id="turn-1",
        content="hello",
        by=services.Actor.server("test"),
        scope=by,
        owner="test",
    )
    window = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, *HELLO]
    wrapped: Runnable[Any, Any] = RunnableWithMessageHistory(
        provider.model(), lambda session_id: DjangoChatMessageHistory(session_id, owner=None)
    )
    assert admitted.claim is not None
    with run_context(admitted.claim, {}):
        _, [message] = await ask_runnable(wrapped, settings, request(window))
    assert message["content"] == "noted"
    assert [m["content"] for m in provider.asked[0]["messages"]] == ["a", "b", "hello"]
    page = await services.aread_history(
        session_key="talk", by=services.Actor.server("test"), scope=by
    )
    assert [row.text for row in page.rows] == ["hello"]


@pytest.fixture
def documented(provider, monkeypatch) -> dict[str, Any]:
    """Return the names that the examples of the pages about bots define, in their order."""
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{provider.server_port}/v1")
    made: dict[str, Any] = {}
    for name in ("model", "responders", "several-bots", "agents"):
        page = (django_settings.BASE_DIR / f"docs/howto/{name}.md").read_text()
        for example in re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
            exec(compile(example, f"{name}.md", "exec"), made)  # noqa: S102  # our own page
    return made


async def test_the_documented_generators_answer(documented, settings):
    _, [message] = await ask_runnable(documented["echo"], settings)
    assert message["content"] == "You wrote: hello"
    *_, last = await stream(documented["forecast"], settings)
    assert last.message["content"] == "There will be rain."


async def test_the_documented_chain_and_factory_answer(documented, provider, settings):
    provider.says = [words("ol\u00e1"), words("ol\u00e1")]
    MADE.update(runnable=documented["bot_for"](Session(metadata={})))
    _, [message] = await ask("tests.responders.test_responders.factory", settings)
    assert message["content"] == "ol\u00e1"
    assert provider.asked[0]["messages"][0]["content"] == "Answer in Portuguese."
    assert documented["bot_for"](Session(metadata={"bot": "echo"})) is documented["echo"]


async def test_the_documented_graphs_answer(documented, provider, settings):
    provider.says = [call("weather", '{"city": "Lisbon"}'), words("It rains.")]
    _, messages = await ask_runnable(documented["agent"], settings)
    assert [m["content"] for m in messages] == ["", "Rain in Lisbon.", "It rains."]
    progress, found = await stream(documented["searcher"], settings)
    assert (progress.state, found.message["content"]) == ("page 3 of 7", "Nothing found.")


async def test_the_documented_graph_asks_and_continues(documented, provider, settings):
    documented["careful"].checkpointer = InMemorySaver()  # no turn runs it here
    provider.says = [call("remove", '{"name": "x"}'), words("Done.")]
    _, [*_, question] = await ask_runnable(documented["careful"], settings)
    assert question["content"] == "Remove x?"
    answer = request([{"role": "user", "content": "yes"}], answers=Question.of(question))
    _, [_, result, last] = await ask_runnable(documented["careful"], settings, answer)
    assert (result["content"], last["content"]) == ("x is removed.", "Done.")


def last_reply(*texts: str) -> str:
    """Send each text to the demo model; return its last reply."""
    window: list[dict[str, object]] = []
    for text in texts:
        window.append({"role": "user", "content": text})
        window.append({"role": "assistant", "content": demo.reply(window)})
    return str(window[-1]["content"])


@pytest.mark.parametrize(
    ("told", "asked", "known"),
    [
        ("Hello, my name is Mira.", "What's my name?", "Mira"),
        ("I'm Ana Lima and I need help", "what is my name", "Ana Lima"),
        ("Call me Ishmael.", "Who am I?", "Ishmael"),
        ("The kettle from order 48213 leaks.", "What was my order number?", "48213"),
        ("My order no. is #A-77", "Do you still know my order number?", "A-77"),
        ("I live in New York.", "Tell me my city!", "New York"),
        ("I\u2019m from Lisbon", "Where do I live?", "Lisbon"),
        ("Write to mira.k@example.org, please.", "What's my e-mail address?", "mira.k@example.org"),
        ("My phone is +49 170 1234567.", "What\u2019s my phone number?", "+49 170 1234567"),
        ("It must be there by March 6th.", "What date did I say?", "March 6th"),
        ("My dog is called Rex.", "What is my dog?", "Rex"),
        ("my name is Anna Weber", "what's my name?", "Anna Weber"),
        (
            "My name\u2019s Anna Weber, and my dog is called Rex.",
            "what's my full name?",
            "Anna Weber",
        ),
        ("my name is José van der Berg", "Do you know my name?", "José van der Berg"),
        ("my name is anna", "who am i?", "anna"),
        ("My dog is called Rex.", "What\u2019s my dog called?", "Rex"),
        ("my dog's name is Rex.", "what is the name of my dog?", "Rex"),
        ("my dog is called rex", "how is my dog called?", "rex"),
        ("My dog is named Rex", "What do I call my dog?", "Rex"),
        ("my cat's name is Tom", "what is the name of my cat?", "Tom"),
        ("my cats are called Tom and Tim", "what are my cats called?", "Tom and Tim"),
        ("my name is anna weber", "what's my name?", "anna weber"),
        ("hi, my name is anna weber and i am new here", "what's my name?", "anna weber"),
        ("my name is will", "what's my name?", "will"),
        ("my name is anna by the way", "what's my name?", "anna"),
        ("My name is Mira. My dog's name is Rex.", "What's my name?", "Mira"),
        ("My dog\u2019s name is Rex.", "What's my dog's name?", "Rex"),
    ],
)
def test_the_demo_model_remembers_facts(told, asked, known):
    assert f"**{known}**" in last_reply(told, "Thanks a lot.", asked)


def test_the_demo_model_admits_what_it_does_not_know():
    unknown = "I don't know your {} yet; you haven't told me here."
    assert last_reply("What's my name?") == unknown.format("name")
    assert last_reply("My name is Mira.", "what's my dog called?") == unknown.format("dog")
    assert "don't know" in last_reply("My name is Mira.", "What did I say about elephants?")
    assert "don't know" in last_reply("Is the train late?")
    assert "don't know" in last_reply("My order is #A-77.", "How is my order?")


def test_the_demo_model_does_not_learn_what_is_not_a_name():
    assert "don't know" in last_reply("my name is not anna", "What's my name?")


def test_the_demo_model_answers_all_questions_with_the_newest_values():
    said = last_reply("I live in Rome. I'm Mira.", "I moved to Oslo", "What's my city and my name?")
    assert said == "Your city is **Oslo**. Your name is **Mira**."


def test_the_demo_model_learns_from_a_message_that_also_asks():
    assert "**Rome**" in last_reply("I live in Rome. What's my name?", "What's my city?")


def test_the_demo_model_quotes_the_sentence_unchanged():
    told = "A couchette\u2026 the LOWER berth!  My bicycle comes with me."
    asked = "What did I say about the lower berths?"
    assert (
        last_reply(told, "A berth, yes.", asked, asked)
        == 'You said: "A couchette\u2026 the LOWER berth!"'
    )


def test_the_demo_model_accepts_long_messages():
    for text in (
        "my " * 10_000,
        "a" * 32_000,
        "order " + "A" * 31_000,
        "." * 32_000,
        "how is my " * 3_200,
    ):
        start = time.monotonic()
        demo.reply([{"role": "user", "content": text}])
        assert time.monotonic() - start < 5


async def test_the_demo_model_streams_word_by_word(settings):
    steps, [message] = await ask("demo", settings)
    assert len(steps[0]) > 3
    assert "".join(steps[0]) == message["content"] == demo.reply(HELLO)


class Undocumented(ModelError):
    code = "unheard_of"  # translated pages may show codes


def test_an_undocumented_error_of_the_host_has_the_text_of_its_base_class():
    assert str(Undocumented()) == "The model failed."
