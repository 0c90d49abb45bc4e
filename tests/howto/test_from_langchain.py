"""The page docs/howto/from-langchain.md."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from types import ModuleType

import pytest
from django.contrib.auth.models import AnonymousUser
from django.db import connection
from langchain_core._api import LangChainDeprecationWarning
from langchain_core.chat_history import InMemoryChatMessageHistory
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, messages_to_dict
from langchain_core.prompts import ChatPromptTemplate

from chatmemory import services
from chatmemory.errors import BadInput
from chatmemory.langchain import DjangoChatMessageHistory, with_memory
from chatmemory.services import Actor
from tests.blocks import ROOT, block_with
from tests.factories import make_messages, make_user
from tests.test_examples import run_example

pytestmark = pytest.mark.django_db

PAGE = "docs/howto/from-langchain.md"
PROMPT = ChatPromptTemplate([("placeholder", "{history}"), ("human", "{input}")])


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
            "bot = RunnableWithMessageHistory",
            **names,
            get_session_history=get_session_history,
        )
    warned = " ".join(str(warning.message) for warning in caught)
    assert "RunnableWithMessageHistory is deprecated" in warned
    assert "`InMemoryChatMessageHistory` was deprecated in LangChain 1.6.4" in warned
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run_example(PAGE, "bot = with_memory", **names)
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
    chain = run_example(PAGE, "trim_messages(", prompt=PROMPT | note, model=lambda value: value)[
        "chain"
    ]
    bot = with_memory(chain, input_messages_key="input", history_messages_key="history")
    bot.invoke({"input": "Well?"}, config={"configurable": {"session_id": "talk", "owner": user}})
    assert [message.content for message in seen[0]] == ["short", "Ok", "Well?"]
    assert len(texts(user)) == 6


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


def test_the_table_of_langchain_is_moved_once():
    users = {"a": make_user(), "b": make_user()}
    call = {"id": "c1", "name": "weather", "args": {"city": "Oslo"}, "type": "tool_call"}
    histories = {
        "a": [HumanMessage("Hi"), AIMessage("Hello", tool_calls=[call])],
        "b": [HumanMessage(f"{number}") for number in range(1_001)],
    }
    rows = [
        [key, json.dumps(message)]
        for key, messages in histories.items()
        for message in messages_to_dict(messages)
    ]
    with connection.cursor() as cursor:
        # As SQLChatMessageHistory of langchain-community 0.4.2 creates it.
        kind = {"postgresql": "SERIAL", "mysql": "INTEGER AUTO_INCREMENT"}
        serial = kind.get(connection.vendor, "INTEGER")
        cursor.execute(
            f"CREATE TEMPORARY TABLE message_store (id {serial} PRIMARY KEY,"
            " session_id TEXT, message TEXT)"
        )
        cursor.executemany("INSERT INTO message_store (session_id, message) VALUES (%s, %s)", rows)
        move = run_example(PAGE, "def move_histories")["move_histories"]
        try:
            for _ in range(2):
                move(users.get)
        finally:
            cursor.execute("DROP TABLE message_store")
    moved = DjangoChatMessageHistory("a", owner=users["a"]).messages
    assert [message.content for message in moved] == ["Hi", "Hello"]
    assert moved[1].tool_calls == [call]
    assert texts(users["b"], "b") == [f"{number}" for number in range(1_001)]


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
