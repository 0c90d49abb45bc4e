"""Each code block of the how-tos of operations is run by a test, or states why it is not."""

from __future__ import annotations

import re
import shlex

import pytest
from django.contrib.auth.models import User

from chatmemory.models import Message, Session
from chatmemory.services import Actor, append_messages, tag_session
from tests.factories import BY, make_messages, make_user
from tests.handbook.reading import chapters, slug
from tests.howto_operations.pages import MANAGE, PAGES, ROOT, Block, blocks
from tests.management.commanding import run, run_json

TESTED = {
    ("audit", '"AUDIT_KEY"'): "test_examples.py",
    ("audit", "CREATE FUNCTION"): "services/audit/test_seals.py",
    ("audit", "SIGNAL SQLSTATE"): "services/audit/test_seals.py",
    ("audit", "SELECT RAISE"): "services/audit/test_seals.py",
    ("audit", "GRANT SELECT"): "services/audit/test_seals.py",
    ("backup", "target_session_attrs"): "howto_operations/test_databases.py",
    ("customizing-admin", "class ShopSessionAdmin"): "test_examples.py",
    ("deployment", "drain.lifespan"): "test_examples.py",
    ("deployment", "token_hex"): "howto_operations/test_deployment.py",
    ("deployment", "/srv/example/manage migrate"): "howto_operations/test_deployment.py",
    ("deployment", "SECURE_PROXY_SSL_HEADER"): "howto_operations/test_deployment.py",
    ("deployment", "LimitNOFILE"): "howto_operations/test_deployment.py",
    ("deployment", "proxy_pass"): "howto_operations/test_deployment.py",
    ("erasure", "class MyUserAdmin"): "test_examples.py",
    ("erasure", "middleware.user_deletions"): "howto_operations/test_databases.py",
    ("erasure", "with deleting_users"): "test_examples.py",
    ("erasure", '"ERASURE_LIST"'): "test_examples.py",
    ("erasure", "replay_erasures"): "test_examples.py",
    ("monitoring", "/chat/api/health/"): "howto_operations/test_monitoring.py",
    ("monitoring", "def count_failure"): "howto_operations/test_monitoring.py",
    ("monitoring", "LOGGING"): "howto_operations/test_monitoring.py",
    ("removal", "restore_session"): "test_examples.py",
    ("retention", '"RETENTION"'): "test_examples.py",
    ("retention", "import Actor, tag_session"): "test_examples.py",
    ("roles", "class BranchSessionAdmin"): "test_examples.py",
    ("running", "chatmemory_runner"): "howto_operations/test_deployment.py",
    ("running", '"VALID_LOGINS"'): "howto_operations/test_databases.py",
    ("scaling-out", "pool_mode"): "howto_operations/test_databases.py",
    ("transfer", "def own_data"): "test_examples.py",
    ("transfer", '"type":"session"'): "test_examples.py",
    ("transfer", '"role":"system"'): "test_examples.py",
    ("transfer", '"type":"human"'): "test_examples.py",
    ("transfer", '"turns": ['): "test_examples.py",
    ("transfer", "Created 2026"): "howto_operations/test_warehouse.py",
    ("transfer", '"session","title"'): "howto_operations/test_warehouse.py",
    ("warehouse", "class Command"): "howto_operations/test_warehouse.py",
    ("warehouse", "export_changes /srv"): "howto_operations/test_warehouse.py",
}
"""Files of tests that run the block of a page with this text."""

each_page = pytest.mark.parametrize("page", PAGES)


def is_run_as_commands(block: Block) -> bool:
    """Whether `test_the_commands_of_a_page_run` runs it."""
    is_named = any(page == block.page and piece in block.text for page, piece in TESTED)
    return block.is_manage and not (block.reason or is_named or is_a_step(block))


def is_a_step(block: Block) -> bool:
    """Whether a test of the handbook runs it, which must consume its whole chapter."""
    return without_indents(block.text) in without_indents(chapters().get(slug(block.chapter), ""))


def without_indents(text: str) -> str:
    """Return the text of a block also in a list, where it is indented."""
    return re.sub(r"^ +", "", text, flags=re.MULTILINE)


@each_page
def test_each_block_is_run_or_states_why_not(page):
    left = []
    for block in blocks(page):
        named = [name for (at, piece), name in TESTED.items() if at == page and piece in block.text]
        ways = [bool(block.reason), is_a_step(block), is_run_as_commands(block), bool(named)]
        if ways.count(True) != 1 or len(named) > 1:
            left.append((block.text[:60], ways))
    assert left == []


def test_each_file_of_tests_names_the_page_and_the_text():
    for (page, piece), name in TESTED.items():
        text = (ROOT / "tests" / name).read_text()
        assert f"howto/{page}.md" in text or f'"{page}"' in text, (page, name)
        assert [block for block in blocks(page) if piece in block.text], (page, piece)


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
    test_the_commands_of_a_page_run("redaction", None)
    assert Message.objects.filter(text="").count() == 1
    test_the_commands_of_a_page_run("transfer", None)
    assert Session.objects.filter(owner__username="bob").count() == 1
