"""The page docs/howto/from-langchain.md."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import uuid
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import redis
from django.contrib.auth.models import AnonymousUser
from django.core.management import call_command
from django.utils.module_loading import import_string
from langchain_core._api import LangChainDeprecationWarning
from langchain_core.chat_history import BaseChatMessageHistory, InMemoryChatMessageHistory
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import tool

from chatmemory import derived, services
from chatmemory.errors import BadInput
from chatmemory.langchain import DjangoChatMessageHistory, with_memory
from chatmemory.services import Actor
from tests.blocks import MANAGE, ROOT, block_with
from tests.factories import make_messages, make_user
from tests.imports.histories import rows_of, table
from tests.test_examples import run_example

pytestmark = pytest.mark.django_db

PAGE = "docs/howto/from-langchain.md"
PROMPT = ChatPromptTemplate([("placeholder", "{history}"), ("human", "{input}")])
PROMPT_OF_MESSAGES = ChatPromptTemplate([("placeholder", "{input}")])


def model(*replies):
    return GenericFakeChatModel(messages=iter([AIMessage(reply) for reply in replies]))


def texts(user, key="talk"):
    page = services.read_history(session_key=key, by=Actor.user(user))
    return [row.text for row in page.rows]


def test_the_old_way_warns_and_the_new_one_does_not():
    user, histories = make_user(), {}

    def get_session_history(session_id):
        return histories.setdefault(session_id, InMemoryChatMessageHistory())

    chain = PROMPT | model("Hello", "Again")
    names = {"chain": chain, "text": "Hi", "key": "talk", "user": user}
    with pytest.warns(LangChainDeprecationWarning) as caught:
        run_example(
            PAGE,
            "chain, get_session_history",
            **names,
            get_session_history=get_session_history,
        )
    warned = " ".join(str(warning.message) for warning in caught)
    assert "RunnableWithMessageHistory is deprecated" in warned
    # LangChain warns of a class once in a process.
    for cls in (BaseChatMessageHistory, InMemoryChatMessageHistory):
        assert str(cls.__doc__).startswith('!!! deprecated "1.6.4 ')
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run_example(PAGE, "with_memory(chain", **names)
        DjangoChatMessageHistory("other", owner=user)
    assert texts(user) == ["Hi", "Again"]


def test_the_chain_trims_what_the_model_reads():
    user, seen = make_user(), []

    def note(values):
        seen.append(values.to_messages())
        return AIMessage("Yes")

    long = "word " * 5_000
    services.append_messages(
        session_key="talk",
        by=Actor.user(user),
        messages=make_messages(long, "Ok", "short", "Ok"),
        create=True,
    )
    names = {"prompt": PROMPT | note, "model": lambda value: value}
    chain = run_example(PAGE, "RunnablePassthrough.assign", **names)["chain"]
    bot = with_memory(chain, input_messages_key="input", history_messages_key="history")
    bot.invoke({"input": "Well?"}, config={"configurable": {"session_id": "talk", "owner": user}})
    assert [message.content for message in seen[0]] == ["short", "Ok", "Well?"]
    assert len(texts(user)) == 6


@tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"Rain in {city}."


class Model(GenericFakeChatModel):
    """Accepts tools, and notes what it is given."""

    messages: Any = None
    answer: Callable[[list[Any]], AIMessage]

    def bind_tools(self, *_: Any, **__: Any) -> Any:
        return self

    def _generate(self, messages: Any, *_: Any, **__: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self.answer(messages))])


def echo(messages: list[Any]) -> AIMessage:
    """Answer with the texts that the model is given."""
    return AIMessage(" ".join(str(message.content) for message in messages))


def agent_of(model: Any) -> Any:
    create_agent = import_string("langchain.agents.create_agent")  # mypy crashes on its import
    return create_agent(model, tools=[])


def ask_of(answer: Callable[[list[Any]], AIMessage] = echo) -> Any:
    """Return the function of the page, as each process makes it."""
    names = {"model": Model(answer=answer), "tools": [weather]}
    return run_example(PAGE, "def ask(user, key, text)", **names)["ask"]


def test_a_buffer_for_each_session_becomes_an_agent_on_our_memory():
    """Pattern 1."""
    chain = PROMPT_OF_MESSAGES | Model(answer=echo)
    with pytest.warns(LangChainDeprecationWarning):
        old = run_example(PAGE, "def old_ask(key, text)", chain=chain)
    with warnings.catch_warnings(action="ignore", category=LangChainDeprecationWarning):
        assert [old["old_ask"]("talk", text) for text in ("a", "b")] == ["a", "a a b"]
    ann, bob = make_user(), make_user()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ask = ask_of()
        assert [ask(ann, "talk", text) for text in ("a", "b")] == ["a", "a a b"]
    assert ask(bob, "talk", "c") == "c"


def test_the_calls_of_tools_are_stored():
    """Pattern 2: a list in Redis has them too."""

    def call(messages: list[Any]) -> AIMessage:
        if messages[-1].type == "tool":
            return AIMessage(messages[-1].content)
        call = {"id": "c1", "name": "weather", "args": {"city": "Oslo"}, "type": "tool_call"}
        return AIMessage("", tool_calls=[call])

    ann = make_user()
    assert ask_of(call)(ann, "talk", "Sun?") == "Rain in Oslo."
    stored = DjangoChatMessageHistory("talk", owner=ann).messages
    assert [message.type for message in stored] == ["human", "ai", "tool", "ai"]
    assert stored[1].tool_calls[0]["args"] == {"city": "Oslo"}


def test_overlapping_turns_need_no_lock():
    """Pattern 3."""
    ann = make_user()

    def overlap(messages: list[Any]) -> AIMessage:
        if messages[-1].content == "first":
            ask_of()(ann, "talk", "second")
        return AIMessage("first reply")

    ask_of(overlap)(ann, "talk", "first")
    assert texts(ann) == ["second", "second", "first", "first reply"]


def test_the_two_calls_of_a_memory_are_kept():
    """Pattern 4."""
    ann = make_user()
    agent = agent_of(Model(answer=echo))
    ask = run_example(PAGE, "def ask_with_context", agent=agent)["ask_with_context"]
    assert [ask(ann, "talk", text) for text in ("a", "b")] == ["a", "a a b"]
    assert texts(ann) == ["a", "a", "b", "a a b"]


def test_a_restart_needs_no_dump(tmp_path):
    """Pattern 5; `test_a_script_continues_its_history` starts processes."""
    dumped = run_example(PAGE, "def dump(histories")
    histories = {"talk": [HumanMessage("a"), AIMessage("b")]}
    dumped["dump"](histories, tmp_path / "memory.json")
    assert dumped["load"](tmp_path / "memory.json") == histories
    ann = make_user()
    ask_of()(ann, "talk", "a")
    assert ask_of()(ann, "talk", "b") == "a a b"


def test_the_middleware_trims_what_the_model_of_an_agent_reads():
    ann, seen = make_user(), []

    def note(messages: list[Any]) -> AIMessage:
        seen.append([message.content for message in messages])
        return AIMessage("Yes")

    names = {"model": Model(answer=note), "tools": []}
    agent = run_example(PAGE, "def newest(", **names)["agent"]
    bot = with_memory(agent, input_messages_key="messages", output_messages_key="messages")
    config = {"configurable": {"session_id": "talk", "owner": ann}}
    for text in ("word " * 5_000, "Well?"):
        bot.invoke({"messages": text}, config)
    assert seen[-1] == ["Well?"]
    assert len(texts(ann)) == 4


@pytest.mark.slow
def test_a_summary_is_given_to_the_agent(shop, monkeypatch):
    ann = make_user()
    summaries = ModuleType("shop.summaries")
    vars(summaries)["summaries_of"] = lambda session: shop.Summary.objects.current().filter(
        session=session
    )
    monkeypatch.setitem(sys.modules, "shop", ModuleType("shop"))
    monkeypatch.setitem(sys.modules, "shop.summaries", summaries)
    agent = agent_of(Model(answer=echo))
    ask = run_example(PAGE, "def ask_with_summary", agent=agent)["ask_with_summary"]
    assert ask(ann, "talk", "a") == "a"
    seen = derived.see(session_key="talk", by=Actor.user(ann))
    assert derived.store(seen, [shop.Summary(low=1, high=2, text="one letter")])
    assert ask(ann, "talk", "b") == "Earlier: one letter a a b"


@pytest.mark.django_db(transaction=True)
def test_the_commands_of_the_page_move_the_histories(monkeypatch, redis_url):
    ann = make_user("ann")
    owner_of = run_example(PAGE, "def owner_of(")["owner_of"]
    moving = ModuleType("shop.moving")
    vars(moving)["owner_of"] = owner_of
    monkeypatch.setitem(sys.modules, "shop", ModuleType("shop"))
    monkeypatch.setitem(sys.modules, "shop.moving", moving)
    assert owner_of("eve:order-1") is None
    key = f"message_store:{uuid.uuid4()}"
    first, second = block_with(PAGE, "--redis redis:").commands
    rows = rows_of({"ann:order-1": [HumanMessage("Hi")]})
    with redis.Redis.from_url(redis_url) as client:
        client.lpush(key, rows[0][1])
        try:
            with table(rows):
                run_command(first.replace("--database old", "--database default"))
            run_command(second.replace("redis://localhost:6379/0", redis_url))
        finally:
            client.delete(key)
    assert texts(ann, "ann:order-1") == ["Hi"]
    assert texts(ann, key.removeprefix("message_store:")) == ["Hi"]


def run_command(line: str) -> None:
    """Run a command of the page."""
    name, *options = shlex.split(line.removeprefix(MANAGE))
    call_command(name, *options, progress=False)


def test_a_view_calls_the_chain(monkeypatch, rf):
    bot = with_memory(
        PROMPT | model("On its way."), input_messages_key="input", history_messages_key="history"
    )
    bots = ModuleType("shop.bots")
    vars(bots)["bot"] = bot
    monkeypatch.setitem(sys.modules, "shop", ModuleType("shop"))
    monkeypatch.setitem(sys.modules, "shop.bots", bots)
    ask = run_example(PAGE, "def ask(request, key)")["ask"]
    ann = make_user("ann")

    def answer(request, user):
        request.user = user
        return ask(request, "talk")

    assert answer(rf.post("/", {"text": "Hi"}), AnonymousUser()).status_code == 302
    assert answer(rf.get("/"), ann).status_code == 405
    asked = answer(rf.post("/", {"text": "Where is it?"}), ann)
    assert json.loads(asked.content) == {"reply": "On its way."}
    assert texts(ann) == ["Where is it?", "On its way."]


BOTS = """
from chatmemory.langchain import with_memory
from langchain_core.messages import AIMessage
from langchain_core.prompts import ChatPromptTemplate

prompt = ChatPromptTemplate([("placeholder", "{history}"), ("human", "{input}")])
bot = with_memory(
    prompt | (lambda value: AIMessage(f"Message {len(value.to_messages())}")),
    input_messages_key="input",
    history_messages_key="history",
)
"""


@pytest.mark.long
def test_a_script_continues_its_history(tmp_path):
    files = {
        "mysite/settings.py": "from project.settings import *",
        "shop/bots.py": BOTS,
        "ask.py": block_with(PAGE, "django.setup()").text,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    database = f"sqlite:///{tmp_path}/db.sqlite3"
    env = {**os.environ, "DATABASE_URL": database, "REDIS_URL": "", "PYTHONPATH": str(ROOT)}
    del env["DJANGO_SETTINGS_MODULE"]

    def run(*args):
        done = subprocess.run(  # noqa: S603  # our own page
            [sys.executable, *args],
            cwd=tmp_path,
            env=env,
            check=True,
            capture_output=True,
            text=True,
        )
        return done.stdout.strip()

    code = """
import django
from django.core.management import call_command

django.setup()
call_command("migrate", verbosity=0)
call_command("createsuperuser", username="ann", email="ann@shop.example", interactive=False)
"""
    run("-c", f"import os; os.environ['DJANGO_SETTINGS_MODULE'] = 'mysite.settings'\n{code}")
    assert [run("ask.py", "Hi"), run("ask.py", "Again")] == ["Message 1", "Message 3"]


def test_a_key_of_other_characters_has_no_page(client):
    ann = make_user("ann")
    for key in ("ann-1", "ann 2"):
        DjangoChatMessageHistory(key, owner=ann).add_messages([HumanMessage(key)])
        assert texts(ann, key) == [key]
    client.force_login(ann)
    pages = [client.get(f"/chat/{key}/").status_code for key in ("ann-1", "ann 2")]
    assert pages == [200, 404]
    listed = client.get("/chat/~all/").content.decode()
    assert "ann-1" in listed
    assert "ann 2" not in listed
    with pytest.raises(BadInput):
        DjangoChatMessageHistory("a" * 201, owner=ann).add_messages([HumanMessage("Hi")])
