"""The examples of README.md, and of the pages that no other test runs, work."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from channels.routing import ProtocolTypeRouter
from django.contrib import admin
from django.contrib.auth.models import Group, User
from django.core.checks import ERROR, run_checks
from django.core.management import call_command
from django.test import AsyncRequestFactory
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.prompts import ChatPromptTemplate

from chatmemory import services
from chatmemory.admin import ChatMemoryUserAdminMixin, SessionAdmin
from chatmemory.errors import Forbidden
from chatmemory.memory import ChatMemory
from chatmemory.models import AuditEntry, Message, Session
from chatmemory.services import Actor
from chatmemory.services.turns.progress import finish_turn
from tests.factories import BY, make_messages, make_session, make_user, make_visitor

pytestmark = pytest.mark.django_db

ROOT = Path(__file__).resolve().parent.parent


SHOP_MEMORY = """
import fcntl, json, pathlib

class Memory:
    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.path.mkdir(exist_ok=True)

    def _file(self, *address):
        return self.path / "~".join(address).encode().hex()

    def append(self, user, session, messages):
        lines = "".join(json.dumps(message) + "\\n" for message in messages)
        with self._file(user, session).open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(lines)

    def messages(self, user, session):
        file = self._file(user, session)
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def clear(self, user, session):
        self._file(user, session).unlink(missing_ok=True)
"""
"""The memory for which docs/reasons/contract.md has an adapter."""


def run_example(page: str, first: str, **names: Any) -> dict[str, Any]:
    """Run the one Python example of a page that contains a text; return the names that it sets."""
    blocks = re.findall(
        r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL
    )
    [example] = [block for block in blocks if first in block]
    exec(compile(example, page, "exec"), names)  # noqa: S102  # our own page
    return names


def texts(owner: User) -> list[str]:
    return [
        row.text for row in services.read_page(session_key="order-4711", by=Actor.user(owner)).rows
    ]


def fill(owner: User, *contents: str) -> None:
    services.append_messages(
        session_key="order-4711",
        by=Actor.user(owner),
        messages=make_messages(*contents),
        create=True,
    )


def test_readme_appends_and_reads_a_page(capsys):
    names = {"user": make_user()}
    for _ in range(2):
        run_example("README.md", "import Actor, append_messages", **names)
        assert capsys.readouterr().out == "['Where is it?']\n"


async def test_readme_echoes():
    echo = run_example("README.md", "async def echo")["echo"]
    pieces = [piece async for piece in echo(make_messages("Hi"), None)]
    assert "".join(pieces) == "You wrote: Hi"


def test_a_receiver_defers_a_message_during_a_reply(
    monkeypatch, django_capture_on_commit_callbacks
):
    """With a stand-in for Celery, which calls the task immediately."""

    def add_module(name, **names):
        module = ModuleType(name)
        vars(module).update(names)
        monkeypatch.setitem(sys.modules, name, module)

    page, ann = "docs/howto/tasks.md", make_user("ann")
    add_module("celery", shared_task=lambda **_: lambda f: SimpleNamespace(delay=f))
    add_module("shop")
    add_module("shop.models", Order=type("Order", (), {}))
    add_module("shop.tasks", **run_example(page, "# shop/tasks.py"))
    names = run_example(page, "# shop/receivers.py")
    order = SimpleNamespace(pk=7, is_shipped=True, customer=ann)
    address = {"session_key": "order-7", "by": BY, "scope": services.user_scope(ann)}
    make_session("order-7", owner=ann)
    claim = services.admit_turn(**address, client_id="c1", content="Where?", owner="me").claim
    for _ in range(2):
        with django_capture_on_commit_callbacks(execute=True):
            names["order_saved"](instance=order)
    finish_turn(claim=claim, status="complete", message={"role": "assistant", "content": "Soon."})
    [chat] = services.list_sessions(by=Actor.user(ann)).sessions
    rows = services.read_history(session_key=chat.key, by=Actor.user(ann)).rows
    assert [row.text for row in rows] == ["Where?", "Soon.", "Your order 7 was shipped."]


def test_a_new_session_gets_what_its_group_needs_or_is_refused(monkeypatch, settings):
    module = ModuleType("chats_of_the_shop")
    module.__dict__.update(run_example("docs/howto/new-sessions.md", "def begin(by, asked)"))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    settings.CHATMEMORY = {**settings.CHATMEMORY, "NEW_SESSION": f"{module.__name__}.begin"}
    user = make_user()
    with pytest.raises(Forbidden, match="no chat"):
        services.open_session(session_key="a", by=Actor.user(user))
    user.groups.add(Group.objects.create(name="gold"))
    session = services.open_session(session_key="a", by=Actor.user(user))
    assert (session.instructions, session.metadata) == ("You serve gold.", {"group": "gold"})
    visitor = make_visitor().actor
    assert services.open_session(session_key="a", by=visitor).ttl_seconds == 86_400


def test_the_example_of_a_system_prompt_names_the_person():
    names = run_example("docs/howto/model.md", "def instructions_for(session)")
    user = make_user(first_name="Ann")
    assert "You talk to Ann." in names["instructions_for"](make_session(owner=user))
    assert names["instructions_for"](make_session("other")) is None


@pytest.mark.parametrize("page", ["README.md", "docs/howto/langchain.md"])
def test_the_history_class_stores_messages(page):
    user = make_user()
    run_example(page, "DjangoChatMessageHistory(", user=user)
    assert texts(user) == ["Where is it?", "On its way."]


def test_with_memory_stores_a_turn():
    user = make_user()
    prompt = ChatPromptTemplate([("placeholder", "{history}"), ("human", "{input}")])
    model = GenericFakeChatModel(messages=iter([AIMessage("On its way.")]))
    run_example("docs/howto/langchain.md", "with_memory(", user=user, prompt=prompt, model=model)
    assert texts(user) == ["Where is my order?", "On its way."]


def test_the_window_is_read():
    session = make_session()
    services.append_messages(
        session_key="talk", by=Actor.server("tests"), scope="server", messages=make_messages("Hi")
    )
    window = run_example("docs/howto/window.md", "read_window", session=session)["window"]
    assert (window.messages, window.is_over) == (make_messages("Hi"), False)
    assert window.tokens > 0


def test_chatmemory_loads_saves_and_clears():
    user, asked = make_user(), []
    fill(user, "Hi")

    def ask_the_model(messages: list[dict[str, object]]) -> str:
        asked.append(messages)
        return "On its way."

    names = {"request": SimpleNamespace(user=user), "text": "Where?"}
    run_example("docs/howto/window.md", "ChatMemory(", **names, ask_the_model=ask_the_model)
    assert asked == [[*make_messages("Hi"), *make_messages("Where?")]]
    assert Session.objects.get().last_seq == 3
    assert ChatMemory("order-4711", by=Actor.user(user)).load_memory() == []


async def test_a_view_exports_the_users_data():
    user = await sync_to_async(make_user)()
    await sync_to_async(fill)(user, "Hi")
    request = AsyncRequestFactory().get("/")
    request.auser = lambda: _value(user)
    response = await run_example("docs/howto/transfer.md", "own_data")["own_data"](request)
    content = b"".join([part async for part in response]).decode()
    assert '"Hi"' in content
    assert response["Content-Type"].startswith("text/csv")


async def _value(value: Any) -> Any:
    return value


SERVICES = "docs/reference/services.md"


@pytest.fixture
def people(settings):
    """A user with 30 messages in the session order-4711, and an operator."""
    settings.CHATMEMORY = {**settings.CHATMEMORY, "ALLOW_ANONYMOUS": True}
    user = make_user("ann")
    fill(user, "My card is 4111 1111.", *["Hi"] * 29)
    return {"user": user, "staff": make_user("olga")}


def test_each_group_of_services_has_an_example():
    groups = re.split("^## ", (ROOT / SERVICES).read_text(), flags=re.MULTILINE)[1:-1]
    assert len(groups) == 12
    assert [group for group in groups if "from chatmemory.services import" not in group] == []


def test_actors_reach_scopes(people):
    names = run_example(SERVICES, "seen = open_session", **people)
    assert names["seen"] == names["own"] != names["log"]


def test_sessions_are_opened_and_listed(people):
    assert run_example(SERVICES, "list_sessions, open", **people)["titles"] == [""]
    assert Session.objects.get().pinned_at is not None


def test_messages_are_appended_and_read(people):
    for _ in range(2):
        names = run_example(SERVICES, "newest = read_page", **people)
    assert names["texts"][-2:] == ["Hi", "Your order was shipped."]
    assert [row.seq for row in names["older"].rows] == [*range(1, 12)]


async def test_views_admit_and_stop_a_turn(people):
    names = run_example(SERVICES, "async def ask", **people)
    request = AsyncRequestFactory().post("/", {"id": "c1", "text": "Where is it?"})
    request.auser = lambda: _value(people["user"])
    answers = [await names["ask"](request), await names["stop"](request, "c1")]
    assert [json.loads(answer.content)["status"] for answer in answers] == ["waiting", "cancelled"]


def test_a_trim_is_previewed_and_undone(people):
    assert run_example(SERVICES, "preview = preview_trim", **people)["preview"].messages == 10
    actions = AuditEntry.objects.order_by("pk").values_list("action", flat=True)
    assert ([*actions], Session.objects.get().first_seq) == (["trim", "restore"], 1)


def test_a_hold_forbids_a_removal(people):
    run_example(SERVICES, "except Held", **people)
    actions = AuditEntry.objects.order_by("pk").values_list("action", flat=True)
    assert [*actions] == ["hold", "release"]


def test_an_operator_tags_a_session_and_adds_a_note(people):
    run_example(SERVICES, "Called back", **people)
    session = Session.objects.get()
    assert session.tags.get().tag == "contract"
    assert session.notes.get().text == "Called back on 4 May."


def test_a_card_number_is_redacted(people):
    run_example(SERVICES, "for found in find_text", **people)
    assert not Message.objects.filter(text__contains="4111").exists()
    assert Message.objects.count() == 30


def test_a_person_is_erased(people):
    names = run_example(SERVICES, "preview_erasure(**ann)", **people)
    assert (names["messages"], names["erased"].messages, names["kept"]) == (30, 30, {})
    assert not Session.objects.exists()


def test_an_export_is_written_to_a_file(people, tmp_path):
    path = tmp_path / "own.jsonl"
    run_example(SERVICES, "writelines", **people, path=path)
    assert path.read_text().count('"type":"message"') == 30


async def test_a_ticket_names_its_person(people):
    names = run_example(SERVICES, "async def person_of", **people)
    request = AsyncRequestFactory().post("/")
    request.auser = lambda: _value(people["user"])
    answer = await names["ticket"](request)
    actor = await names["person_of"](json.loads(answer.content)["ticket"])
    assert actor == Actor.user(people["user"])


def test_a_visitor_is_adopted(people):
    names = run_example(SERVICES, "offer = offer_adoption", **people)
    assert names["new_keys"] == {"help": "help"}
    assert Session.objects.get(key="help").owner == people["user"]


@pytest.fixture
def registry():
    """The models of the admin, which are restored after the test."""
    registry = admin.site._registry
    before = dict(registry)
    yield registry
    registry.clear()
    registry.update(before)


def test_a_subclass_restricts_operators(registry, rf):
    run_example("docs/howto/roles.md", "class BranchSessionAdmin")
    assert isinstance(registry[Session], SessionAdmin)
    assert type(registry[Session]) is not SessionAdmin
    make_session()  # without an owner, and so without a branch
    request = rf.get("/")
    request.user = make_user("olga", is_staff=True, is_superuser=True)
    request.user.branch = None
    assert [*registry[Session].get_queryset(request)] == []


def test_a_subclass_extends_the_list_and_its_search(registry, rf):
    shop_admin = run_example("docs/howto/customizing-admin.md", "class ShopSessionAdmin")[
        "ShopSessionAdmin"
    ]
    session = make_session("found", owner=make_user("u7", first_name="Ann"))
    make_session("other", owner=make_user("u8"))
    request = rf.get("/", {"q": "Ann"})
    request.user = make_user("root", is_staff=True, is_superuser=True)
    listed = shop_admin(Session, admin.site).get_changelist_instance(request)
    assert listed.result_list == [session]
    assert listed.list_display[-1] == "pinned_at"


def test_the_mixin_goes_into_the_admin_of_users(registry):
    run_example("docs/howto/erasure.md", "class MyUserAdmin")
    assert isinstance(registry[User], ChatMemoryUserAdminMixin)


def test_an_operator_trims_restores_and_holds():
    ann = make_user(pk=7)
    fill(ann, *["Hi"] * 50)
    request = SimpleNamespace(user=make_user("olga", pk=8))
    run_example("docs/howto/removal.md", "restore_session", request=request)
    actions = AuditEntry.objects.order_by("pk").values_list("action", flat=True)
    assert [*actions] == ["trim", "restore", "hold"]
    assert Session.objects.get().held_at is not None


def test_server_code_tags_a_session():
    fill(make_user(pk=7), "Hi")
    run_example("docs/howto/retention.md", "import Actor, tag_session")
    assert Session.objects.get().tags.get().tag == "contract"


def test_the_deletion_of_a_user_names_the_operator():
    user = make_user()
    fill(user, "Hi")
    request = SimpleNamespace(user=make_user("olga"))
    run_example("docs/howto/erasure.md", "with deleting_users", request=request, user=user)
    entry = AuditEntry.objects.get(action="user_deleted")
    assert (entry.actor_kind, entry.actor_label) == ("operator", "olga")


def test_erasures_are_replayed(settings, tmp_path):
    settings.CHATMEMORY = {
        "AUDIT_KEY": "a key",
        "ERASURE_LIST": str(tmp_path / "erasures.jsonl"),
    }
    user = make_user()
    services.erase_person(by=Actor.server("tests"), scope=services.user_scope(user), reason="test")
    AuditEntry.objects.all().delete()
    fill(user, "Hi")
    Session.objects.update(created_at="2026-01-01T00:00:00Z")
    replayed = run_example("docs/howto/erasure.md", "replay_erasures")["replayed"]
    assert (Session.objects.count(), replayed.held, replayed.unreadable) == (0, {}, 0)


@pytest.mark.parametrize(
    ("page", "first"),
    [
        ("docs/howto/retention.md", '"RETENTION"'),
        ("docs/howto/erasure.md", '"ERASURE_LIST"'),
        ("docs/howto/audit.md", '"AUDIT_KEY"'),
        ("docs/howto/model.md", '"INSTRUCTIONS"'),
        ("docs/reference/api-authentication.md", '"API_AUTHENTICATION"'),
    ],
)
def test_the_settings_of_a_page_pass_the_checks(page, first, settings, monkeypatch):
    monkeypatch.setenv("AUDIT_KEY", "a key")
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    settings.CHATMEMORY = run_example(page, first, os=os)["CHATMEMORY"]
    assert [message for message in run_checks() if message.level >= ERROR] == []


def test_the_lifespan_is_a_protocol_of_the_application():
    names = {"ProtocolTypeRouter": ProtocolTypeRouter, "http": None, "websocket": None}
    router = run_example("docs/howto/deployment.md", "drain.lifespan", **names)["application"]
    assert callable(router.application_mapping["lifespan"])


@pytest.mark.parametrize("number", range(4), ids=["jsonl", "openai", "langchain", "dialogue"])
def test_the_documented_forms_can_be_imported(number, tmp_path):
    text = (ROOT / "docs/howto/transfer.md").read_text()
    forms = re.findall(r"^```json\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(forms) == 4
    file = tmp_path / "dialogues.jsonl"
    file.write_text(forms[number])
    make_user("ann")
    call_command("chatmemory_import", str(file), owner="ann", by="olga", reason="test")
    assert Session.objects.get().owner.username == "ann"
    assert Message.objects.count() == [2, 5, 1, 2][number]


@pytest.mark.slow
def test_the_documented_adapter_passes_the_contract(tmp_path):
    text = (ROOT / "docs/reasons/contract.md").read_text()
    files = dict(re.findall(r"^```python\n# (\S+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    assert len(files) == text.count("```python")
    for name, content in {**files, "shop/memory.py": SHOP_MEMORY}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
    done = subprocess.run(  # noqa: S603  # our own command line
        command, cwd=tmp_path, env=env, check=False, capture_output=True, text=True
    )
    assert re.search(r"^\d+ passed, \d+ skipped", done.stdout, re.MULTILINE), done.stdout
