"""Each code block of the pages is run by a test, or states why it is not."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest
from django.contrib.auth.models import User

from chatmemory.models import Message, Session
from chatmemory.services import Actor, append_messages, tag_session
from tests.blocks import FENCE, MANAGE, PAGES, ROOT, Block, block_with, blocks
from tests.factories import BY, make_messages, make_user
from tests.handbook.reading import PAGES as PAGES_WITH_STEPS
from tests.handbook.reading import chapters, slug
from tests.management.commanding import run, run_json

TESTED = {
    ("README.md", "# settings.py"): "test_wheel.py",
    ("README.md", "# urls.py"): "test_wheel.py",
    ("README.md", "# asgi.py"): "test_wheel.py",
    ("README.md", "async def echo"): "test_examples.py",
    ("README.md", "import Actor, append_messages"): "test_examples.py",
    ("README.md", "DjangoChatMessageHistory("): "test_examples.py",
    ("docs/howto/admin-links.md", "<h2>Chats</h2>"): "admin/test_links.py",
    ("docs/howto/admin-links.md", "class Media"): "admin/test_links.py",
    ("docs/howto/admin-links.md", "conversation_links"): "admin/test_links.py",
    ("docs/howto/admin-links.md", 'AdminSite("shop_admin")'): "admin/test_links.py",
    ("docs/howto/agents.md", "Rain in "): "responders/test_responders.py",
    ("docs/howto/agents.md", "searcher"): "responders/test_responders.py",
    ("docs/howto/agents.md", "careful"): "responders/test_responders.py",
    ("docs/howto/appearance.md", "my-chat.css"): "pages/test_appearance.py",
    ("docs/howto/appearance.md", "block scheme"): "pages/test_appearance.py",
    ("docs/howto/appearance.md", "--cm-user-bubble"): "pages/test_appearance.py",
    ("docs/howto/appearance.md", ":root { color-scheme: dark; }"): "pages/test_appearance.py",
    ("docs/howto/appearance.md", 'msgstr "Robin"'): "pages/test_appearance.py",
    ("docs/howto/audit.md", '"AUDIT_KEY"'): "test_examples.py",
    ("docs/howto/audit.md", "CREATE FUNCTION"): "services/audit/test_seals.py",
    ("docs/howto/audit.md", "SIGNAL SQLSTATE"): "services/audit/test_seals.py",
    ("docs/howto/audit.md", "SELECT RAISE"): "services/audit/test_seals.py",
    ("docs/howto/audit.md", "GRANT SELECT"): "services/audit/test_seals.py",
    ("docs/howto/backup.md", "target_session_attrs"): "howto_operations/test_databases.py",
    ("docs/howto/client-js.md", "new ChatMemoryClient"): "js/test_rest.py",
    ("docs/howto/client-js.md", "ApiError"): "js/test_rest.py",
    ("docs/howto/client.md", "order_status"): "client/test_client.py",
    ("docs/howto/client.md", "watch"): "client/test_client.py",
    ("docs/howto/client.md", "patient"): "client/test_client.py",
    ("docs/howto/client.md", "My order"): "client/test_rest.py",
    ("docs/howto/client.md", "export_text"): "client/test_rest.py",
    ("docs/howto/client.md", "rename"): "client/test_rest.py",
    ("docs/howto/client.md", "with_token"): "client/test_rest.py",
    ("docs/howto/customizing-admin.md", "class ShopSessionAdmin"): "test_examples.py",
    ("docs/howto/deployment.md", "drain.lifespan"): "test_examples.py",
    ("docs/howto/deployment.md", "token_hex"): "howto_operations/test_deployment.py",
    (
        "docs/howto/deployment.md",
        "/srv/example/manage migrate",
    ): "howto_operations/test_deployment.py",
    ("docs/howto/deployment.md", "SECURE_PROXY_SSL_HEADER"): "howto_operations/test_deployment.py",
    ("docs/howto/deployment.md", "LimitNOFILE"): "howto_operations/test_deployment.py",
    ("docs/howto/deployment.md", "proxy_pass"): "howto_operations/test_deployment.py",
    ("docs/howto/embed.md", "EMBEDS"): "howto/test_front_ends.py",
    ("docs/howto/erasure.md", "class MyUserAdmin"): "test_examples.py",
    ("docs/howto/erasure.md", "user_deletions"): "howto_operations/test_databases.py",
    ("docs/howto/erasure.md", "with deleting_users"): "test_examples.py",
    ("docs/howto/erasure.md", '"ERASURE_LIST"'): "test_examples.py",
    ("docs/howto/erasure.md", "replay_erasures"): "test_examples.py",
    (
        "docs/howto/from-langchain.md",
        "bot = RunnableWithMessageHistory",
    ): "howto/test_from_langchain.py",
    ("docs/howto/from-langchain.md", "bot = with_memory"): "howto/test_from_langchain.py",
    ("docs/howto/from-langchain.md", "def ask(request, key)"): "howto/test_from_langchain.py",
    ("docs/howto/from-langchain.md", "django.setup()"): "howto/test_from_langchain.py",
    ("docs/howto/from-langchain.md", "trim_messages("): "howto/test_from_langchain.py",
    ("docs/howto/from-langchain.md", "def move_histories"): "howto/test_from_langchain.py",
    ("docs/howto/front-end.md", "CSRF_TRUSTED_ORIGINS ="): "howto/test_front_ends.py",
    ("docs/howto/front-end.md", "# shop/views.py"): "howto/test_front_ends.py",
    ("docs/howto/front-end.md", "accounts/me/"): "howto/test_front_ends.py",
    ("docs/howto/front-end.md", "// src/login.js"): "howto/test_front_ends.py",
    ("docs/howto/gate.md", "otp_device_id"): "howto/test_hooks.py",
    ("docs/howto/gate.md", "_impersonate"): "howto/test_hooks.py",
    ("docs/howto/gate.md", "hijack_history"): "howto/test_hooks.py",
    ("docs/howto/history-in-a-view.md", "def chats(request)"): "howto/test_front_ends.py",
    (
        "docs/howto/history-in-a-view.md",
        "{% for message in messages %}",
    ): "howto/test_front_ends.py",
    ("docs/howto/langchain.md", "DjangoChatMessageHistory("): "test_examples.py",
    ("docs/howto/langchain.md", "with_memory("): "test_examples.py",
    ("docs/howto/model.md", '"INSTRUCTIONS"'): "test_examples.py",
    ("docs/howto/model.md", "def instructions_for(session)"): "test_examples.py",
    ("docs/howto/model.md", "max_retries=1"): "howto/test_your_models.py",
    ("docs/howto/monitoring.md", "https://chat.example.com"): "howto_operations/test_monitoring.py",
    ("docs/howto/monitoring.md", "http://127.0.0.1:8001"): "howto_operations/test_monitoring.py",
    ("docs/howto/monitoring.md", "def count_failure"): "howto_operations/test_monitoring.py",
    ("docs/howto/monitoring.md", "LOGGING"): "howto_operations/test_monitoring.py",
    ("docs/howto/new-sessions.md", "def begin(by, asked)"): "test_examples.py",
    (
        "docs/howto/new-sessions.md",
        'metadata={"team": "gold"}',
    ): "services/test_metadata_filters.py",
    ("docs/howto/new-sessions.md", "shop_session_team"): "services/test_metadata_filters.py",
    ("docs/howto/own-tables.md", "shop/models.py"): "services/derived/test_documentation.py",
    ("docs/howto/own-tables.md", "shop/apps.py"): "services/derived/test_documentation.py",
    ("docs/howto/own-tables.md", "shop/summaries.py"): "services/derived/test_documentation.py",
    ("docs/howto/own-tables.md", "shop/receipts.py"): "services/derived/test_documentation.py",
    ("docs/howto/own-tables.md", "shop/tests.py"): "services/derived/test_documentation.py",
    ("docs/howto/quotas.md", "def check(by, sending)"): "howto/test_hooks.py",
    ("docs/howto/quotas.md", "def take(by, sending)"): "howto/test_hooks.py",
    ("docs/howto/removal.md", "restore_session"): "test_examples.py",
    ("docs/howto/rendering.md", 'prefix="answer-"'): "rendering/test_rows.py",
    ("docs/howto/rendering.md", "RowRenderer(page.head)"): "rendering/test_rows.py",
    ("docs/howto/rendering.md", "stream.feed(piece)"): "rendering/test_stream.py",
    ("docs/howto/responders.md", "You wrote: "): "responders/test_responders.py",
    ("docs/howto/responders.md", "forecast"): "responders/test_responders.py",
    ("docs/howto/responders.md", "Answer in Portuguese."): "responders/test_responders.py",
    ("docs/howto/retention.md", '"RETENTION"'): "test_examples.py",
    ("docs/howto/retention.md", "import Actor, tag_session"): "test_examples.py",
    ("docs/howto/roles.md", "class BranchSessionAdmin"): "test_examples.py",
    ("docs/howto/running.md", "chatmemory_runner"): "howto_operations/test_deployment.py",
    ("docs/howto/running.md", '"VALID_LOGINS"'): "howto_operations/test_databases.py",
    ("docs/howto/scaling-out.md", "pool_mode"): "howto_operations/test_databases.py",
    ("docs/howto/several-bots.md", "bot_for"): "responders/test_responders.py",
    ("docs/howto/sign-in.md", 'include("chatmemory.accounts")'): "howto/test_front_ends.py",
    ("docs/howto/sign-in.md", "members:login"): "howto/test_front_ends.py",
    ("docs/howto/signals.md", "prometheus_client"): "database/test_after_commit.py",
    ("docs/howto/signals.md", "waited_seconds="): "howto_operations/test_monitoring.py",
    ("docs/howto/tasks.md", "# shop/tasks.py"): "test_examples.py",
    ("docs/howto/tasks.md", "# shop/receivers.py"): "test_examples.py",
    ("docs/howto/tenants.md", "def begin(by, asked)"): "howto/test_hooks.py",
    ("docs/howto/titles.md", "init_chat_model"): "live/test_titles.py",
    ("docs/howto/transfer.md", "own_data"): "test_examples.py",
    ("docs/howto/transfer.md", "Created 2026"): "howto_operations/test_warehouse.py",
    ("docs/howto/transfer.md", '"session","title"'): "howto_operations/test_warehouse.py",
    ("docs/howto/warehouse.md", "class Command"): "howto_operations/test_warehouse.py",
    ("docs/howto/warehouse.md", "export_changes /srv"): "howto_operations/test_warehouse.py",
    ("docs/howto/widget.md", "session_key=key"): "templatetags/test_chatmemory.py",
    ("docs/howto/widget.md", "chatmemory_words"): "templatetags/test_chatmemory.py",
    ("docs/howto/widget.md", "chatmemory:ready"): "pages/test_widget.py",
    ("docs/howto/widget.md", "--cm-panel-inset"): "pages/test_appearance.py",
    ("docs/howto/window.md", "read_window"): "test_examples.py",
    ("docs/howto/window.md", "ChatMemory("): "test_examples.py",
    ("docs/howto/your-models.md", "def my_orders"): "howto/test_your_models.py",
    ("docs/howto/your-models.md", "async def answer"): "howto/test_your_models.py",
    ("docs/howto/your-models.md", "wait_for_colleague"): "howto/test_your_models.py",
    ("docs/reasons/decisions/0008-erasure-list.md", '"of": "all"'): (
        "services/erasure/test_erasure_list.py"
    ),
    ("docs/reasons/recall.md", "I fly to Concord"): "programs/recall/test_recall.py",
    ("docs/reference/api-authentication.md", '"API_AUTHENTICATION"'): "test_examples.py",
    ("docs/reference/api-authentication.md", "SITE="): "api/test_first_calls.py",
    ("docs/reference/api.md", "Unknown.as_view()"): "api/test_urls.py",
    ("docs/reference/services.md", "seen = open_session"): "test_examples.py",
    ("docs/reference/services.md", "list_sessions, open"): "test_examples.py",
    ("docs/reference/services.md", "newest = read_page"): "test_examples.py",
    ("docs/reference/services.md", "async def ask"): "test_examples.py",
    ("docs/reference/services.md", "preview = preview_trim"): "test_examples.py",
    ("docs/reference/services.md", "except Held"): "test_examples.py",
    ("docs/reference/services.md", "Called back"): "test_examples.py",
    ("docs/reference/services.md", "for found in find_text"): "test_examples.py",
    ("docs/reference/services.md", "preview_erasure(**ann)"): "test_examples.py",
    ("docs/reference/services.md", "writelines"): "test_examples.py",
    ("docs/reference/services.md", "async def person_of"): "test_examples.py",
    ("docs/reference/services.md", "offer = offer_adoption"): "test_examples.py",
    ("docs/start/small-setup.md", "15 3 * * *"): "handbook/test_daily_jobs.py",
}
"""Files of tests that run the block of a page with this text."""

WHOLE = {
    ("docs/howto/removing.md", "sh"): "test_removing.py",
    ("docs/howto/testing.md", "python"): "testing/test_testing.py",
    ("docs/howto/transfer.md", "json"): "test_examples.py",
    ("docs/reasons/contract.md", "python"): "test_examples.py",
    ("docs/start/your-project.md", "python"): "start/test_your_project.py",
    ("docs/start/tutorial-1-bot.md", "*"): "start/test_tutorial.py",
    ("docs/start/tutorial-2-shop.md", "*"): "start/test_tutorial.py",
    ("docs/start/tutorial-3-production.md", "*"): "start/test_tutorial.py",
}
"""Files of tests that run each block of a page in a language (* for all), whatever it contains."""

each_page = pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)])


def ways_of(block: Block) -> list[str]:
    """Return each way in which a block is run, or why it is not; there must be one."""
    ways = [name for (page, piece), name in TESTED.items() if is_at(block, page, piece)]
    ways += [WHOLE[at] for at in languages_of(block) if at in WHOLE]
    if block.reason:
        ways.append(f"not run: {block.reason}")
    if is_a_step(block):
        ways.append("handbook")
    if is_signature(block):
        ways.append("generated")
    if block.is_manage and not ways:
        ways.append(COMMANDS)
    return ways


def languages_of(block: Block) -> list[tuple[str, str]]:
    return [(block.page, block.language), (block.page, "*")]


COMMANDS = "test_blocks.py"
"""The way of the blocks that `test_the_commands_of_a_page_run` runs."""


def is_at(block: Block, page: str, piece: str) -> bool:
    return block.page == page and piece in block.text


def is_run_as_commands(block: Block) -> bool:
    return ways_of(block) == [COMMANDS]


def is_a_step(block: Block) -> bool:
    """Whether a test of the handbook runs it, which must consume its whole chapter."""
    chapter = chapters().get(slug(block.chapter), "") if block.page in STEPS else ""
    return without_indents(block.text) in without_indents(chapter)


STEPS = {f"docs/howto/{name}.md" for name in PAGES_WITH_STEPS}


def is_signature(block: Block) -> bool:
    """Whether docs/generate/services_page.py writes it, from the code."""
    if block.page != "docs/reference/services.md":
        return False
    try:
        ast.parse(f"def {block.text.rstrip()}: ...")
    except SyntaxError:
        return False
    return True


def without_indents(text: str) -> str:
    """Return the text of a block also in a list, where it is indented."""
    return re.sub(r"^ +", "", text, flags=re.MULTILINE)


@each_page
def test_each_block_is_run_or_states_why_not(page):
    ways = [(block.text[:60], ways_of(block)) for block in blocks(page)]
    assert [(text, found) for text, found in ways if len(found) != 1] == []


def test_each_path_in_a_reason_exists():
    reasons = [block.reason for page in PAGES for block in blocks(page)]
    paths = re.findall(r"\b(?:tests|project)/[\w/]+(?:\.py)?", " ".join(reasons))
    assert len(paths) >= 10
    assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.parametrize(("page", "piece"), TESTED)
def test_a_file_of_tests_names_the_page_and_the_text(page, piece):
    text = (ROOT / "tests" / TESTED[page, piece]).read_text()
    assert names(text, page)
    assert piece in text
    block_with(page, piece)


def test_a_file_of_tests_names_the_page_that_it_runs():
    found = {at for page in PAGES for block in blocks(page) for at in languages_of(block)}
    for at, name in WHOLE.items():
        assert names((ROOT / "tests" / name).read_text(), at[0]), (at, name)
        assert at in found


@pytest.mark.parametrize("page", PAGES)
def test_each_fence_of_a_page_is_found(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert re.findall("^.*(?:```|~~~).*$", FENCE.sub("", text), re.MULTILINE) == []


def names(text: str, page: str) -> bool:
    path = Path(page)
    return path.name in text or f'"{path.stem}"' in text


@pytest.fixture
def scene(db, tmp_path, monkeypatch, settings):
    """Ann (user:7) with the conversation order-4711, Bob without one, and a folder for files."""
    settings.SILENCED_SYSTEM_CHECKS = ["chatmemory.E012"]  # DB_THREADS is 0 in tests
    monkeypatch.chdir(tmp_path)
    ann = User.objects.filter(pk=7).first() or make_user("ann", pk=7)
    make_user("bob", pk=8)
    append_messages(
        session_key="order-4711",
        by=Actor.user(ann),
        messages=make_messages(*["My card is 4711"] * 14),
        create=True,
    )
    tag_session(session_key="order-4711", scope="user:7", tag="new", by=BY, reason="an entry")


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(map(is_run_as_commands, blocks(page)))]
)
def test_the_commands_of_a_page_run(page, scene):
    for block in filter(is_run_as_commands, blocks(page)):
        for line in block.commands:
            if "1207:9f8a…" in line:
                _, [result] = run_json("chatmemory_audit_verify")
                line = line.replace("1207:9f8a…", result["head"])
            name, *args = shlex.split(line.removeprefix(MANAGE), comments=True)
            status, output = run(name, *args)
            assert status == 0, (line, output)


@pytest.mark.slow
def test_the_commands_of_redaction_and_transfer_have_their_effect(scene):
    test_the_commands_of_a_page_run("docs/howto/redaction.md", None)
    assert Message.objects.filter(text="").count() == 1
    test_the_commands_of_a_page_run("docs/howto/transfer.md", None)
    assert Session.objects.filter(owner__username="bob").count() == 1
