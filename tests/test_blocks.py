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
    "README.md": {
        "test_wheel.py": ["# settings.py", "# urls.py", "# asgi.py"],
        "test_examples.py": [
            "async def echo",
            "import Actor, append_messages",
            "DjangoChatMessageHistory(",
        ],
    },
    "docs/howto/admin-links.md": {
        "admin/test_links.py": [
            "<h2>Chats</h2>",
            "class Media",
            "conversation_links",
            'AdminSite("shop_admin")',
        ]
    },
    "docs/howto/agents.md": {"responders/test_responders.py": ["Rain in ", "searcher", "careful"]},
    "docs/howto/appearance.md": {
        "pages/test_appearance.py": [
            "my-chat.css",
            "block scheme",
            "--cm-user-bubble",
            ":root { color-scheme: dark; }",
            'msgstr "Robin"',
        ]
    },
    "docs/howto/audit.md": {
        "test_examples.py": ['"AUDIT_KEY"'],
        "services/audit/test_seals.py": [
            "CREATE FUNCTION",
            "SIGNAL SQLSTATE",
            "SELECT RAISE",
            "GRANT SELECT",
        ],
    },
    "docs/howto/backup.md": {"howto_operations/test_databases.py": ["target_session_attrs"]},
    "docs/howto/client-js.md": {"js/test_rest.py": ["new ChatMemoryClient", "ApiError"]},
    "docs/howto/client.md": {
        "client/test_client.py": ["order_status", "watch", "patient"],
        "client/test_client_fallback.py": ["behind_a_proxy"],
        "client/test_rest.py": ["My order", "export_text", "rename", "with_token"],
    },
    "docs/howto/customizing-admin.md": {"test_examples.py": ["class ShopSessionAdmin"]},
    "docs/howto/deployment.md": {
        "test_examples.py": ["drain.lifespan"],
        "howto_operations/test_deployment.py": [
            "token_hex",
            "/srv/example/manage migrate",
            "SECURE_PROXY_SSL_HEADER",
            "LimitNOFILE",
            "proxy_pass",
        ],
    },
    "docs/howto/embed.md": {"howto/test_front_ends.py": ["EMBEDS"]},
    "docs/howto/erasure.md": {
        "test_examples.py": [
            "class MyUserAdmin",
            "with deleting_users",
            '"ERASURE_LIST"',
            "replay_erasures",
        ],
        "howto_operations/test_databases.py": ["user_deletions"],
    },
    "docs/howto/from-langchain.md": {
        "howto/test_from_langchain.py": [
            "chain, get_session_history",
            "with_memory(chain",
            "def ask(user, key, text)",
            "def old_ask(key, text)",
            "def ask_with_context",
            "def dump(histories",
            "def ask(request, key)",
            "django.setup()",
            "def newest(",
            "RunnablePassthrough.assign",
            "def ask_with_summary",
            "def owner_of(",
            "--redis redis:",
        ]
    },
    "docs/howto/front-end.md": {
        "howto/test_front_ends.py": [
            "CSRF_TRUSTED_ORIGINS =",
            "# shop/views.py",
            "accounts/me/",
            "// src/login.js",
        ],
        "howto/test_one_origin.py": ["try_files", "STATICFILES_DIRS", "TemplateView"],
    },
    "docs/howto/gate.md": {
        "howto/test_hooks.py": ["otp_device_id", "_impersonate", "hijack_history"]
    },
    "docs/howto/history-in-a-view.md": {
        "howto/test_front_ends.py": ["def chats(request)", "{% for message in messages %}"]
    },
    "docs/howto/langchain.md": {"test_examples.py": ["DjangoChatMessageHistory(", "with_memory("]},
    "docs/howto/model.md": {
        "test_examples.py": ['"INSTRUCTIONS"', "def instructions_for(session)"],
        "howto/test_your_models.py": ["max_retries=1"],
    },
    "docs/howto/monitoring.md": {
        "howto_operations/test_monitoring.py": [
            "https://chat.example.com",
            "http://127.0.0.1:8001",
            "def count_failure",
            "LOGGING",
        ]
    },
    "docs/howto/agents-sdk.md": {"agents/test_agents_page.py": ["# shop/guide.py"]},
    "docs/howto/langgraph.md": {
        "langgraph/test_langgraph_page.py": [
            "shop/planner.py",
            "shop/helper.py",
            "shop/notes.py",
            "shop/prune.py",
            "shop/secret.py",
        ]
    },
    "docs/howto/new-sessions.md": {
        "test_examples.py": ["def begin(by, asked)"],
        "services/test_metadata_filters.py": ['metadata={"team": "gold"}', "shop_session_team"],
    },
    "docs/howto/own-tables.md": {
        "services/derived/test_documentation.py": [
            "shop/models.py",
            "shop/apps.py",
            "shop/summaries.py",
            "shop/receipts.py",
            "shop/tests.py",
        ]
    },
    "docs/howto/quotas.md": {
        "howto/test_hooks.py": ["def check(by, sending)", "def take(by, sending)"]
    },
    "docs/howto/removal.md": {"test_examples.py": ["restore_session"]},
    "docs/howto/rendering.md": {
        "rendering/test_rows.py": ['prefix="answer-"', "RowRenderer(page.head)"],
        "rendering/test_stream.py": ["stream.feed(piece)"],
    },
    "docs/howto/responders.md": {
        "responders/test_responders.py": ["You wrote: ", "forecast", "Answer in Portuguese."]
    },
    "docs/howto/retention.md": {"test_examples.py": ['"RETENTION"', "import Actor, tag_session"]},
    "docs/howto/roles.md": {"test_examples.py": ["class BranchSessionAdmin"]},
    "docs/howto/running.md": {
        "howto_operations/test_deployment.py": ["chatmemory_runner"],
        "howto_operations/test_databases.py": ['"VALID_LOGINS"'],
    },
    "docs/howto/scaling-out.md": {"howto_operations/test_databases.py": ["pool_mode"]},
    "docs/howto/several-bots.md": {"responders/test_responders.py": ["bot_for"]},
    "docs/howto/search.md": {
        "howto/test_search_howto.py": [
            "INSTALLED_APPS +=",
            "chatmemory.search.urls",
            '"green kettle"',
            "def found_by",
        ],
        "search/test_mcp.py": ["memory_server", "async def search_chats"],
        "search/test_tools.py": ["memory_tools("],
    },
    "docs/howto/sign-in.md": {
        "howto/test_front_ends.py": ['include("chatmemory.accounts")', "members:login"]
    },
    "docs/howto/signals.md": {
        "database/test_after_commit.py": ["prometheus_client"],
        "howto_operations/test_monitoring.py": ["waited_seconds="],
    },
    "docs/howto/streams.md": {"howto/test_streams.py": ["chatmemory.streams.urls"]},
    "docs/howto/tasks.md": {"test_examples.py": ["# shop/tasks.py", "# shop/receivers.py"]},
    "docs/howto/tenants.md": {"howto/test_hooks.py": ["def begin(by, asked)"]},
    "docs/howto/titles.md": {"live/test_titles.py": ["init_chat_model"]},
    "docs/howto/transfer.md": {
        "test_examples.py": ["own_data"],
        "howto_operations/test_warehouse.py": ["Created 2026", '"session","title"'],
    },
    "docs/howto/warehouse.md": {
        "howto_operations/test_warehouse.py": ["class Command", "export_changes /srv"]
    },
    "docs/howto/widget.md": {
        "templatetags/test_chatmemory.py": ["session_key=key", "chatmemory_words"],
        "pages/test_widget.py": ["chatmemory:ready"],
        "pages/test_appearance.py": ["--cm-panel-inset"],
    },
    "docs/howto/window.md": {"test_examples.py": ["read_window", "ChatMemory("]},
    "docs/howto/your-models.md": {
        "howto/test_your_models.py": ["def my_orders", "async def answer", "wait_for_colleague"]
    },
    "docs/reasons/decisions/0008-erasure-list.md": {
        "services/erasure/test_erasure_list.py": ['"of": "all"']
    },
    "docs/reasons/recall.md": {"programs/recall/test_recall.py": ["I fly to Concord"]},
    "docs/reference/api-authentication.md": {
        "test_examples.py": ['"API_AUTHENTICATION"'],
        "api/test_first_calls.py": ["SITE="],
    },
    "docs/reference/api.md": {"api/test_urls.py": ["Unknown.as_view()"]},
    "docs/reference/services.md": {
        "test_examples.py": [
            "seen = open_session",
            "list_sessions, open",
            "newest = read_page",
            "async def ask",
            "preview = preview_trim",
            "except Held",
            "Called back",
            "for found in find_text",
            "preview_erasure(**ann)",
            "writelines",
            "async def person_of",
            "offer = offer_adoption",
        ]
    },
    "docs/start/small-setup.md": {"handbook/test_daily_jobs.py": ["15 3 * * *"]},
}
"""By page the files of tests that run its blocks, each with a text of each block."""

RUN_BY = {
    (page, piece): name
    for page, files in TESTED.items()
    for name, pieces in files.items()
    for piece in pieces
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
    ways = [name for (page, piece), name in RUN_BY.items() if is_at(block, page, piece)]
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


@pytest.mark.parametrize(("page", "piece"), RUN_BY)
def test_a_file_of_tests_names_the_page_and_the_text(page, piece):
    text = (ROOT / "tests" / RUN_BY[page, piece]).read_text()
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
