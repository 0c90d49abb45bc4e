"""Each page and each command behind PgBouncer, where each transaction has another connection."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from django.core.management import call_command

import chatmemory
from chatmemory.models import Session
from chatmemory.services.retention.accounts import preview_forgetting
from tests.admin.scene import MASKED, all_pages, make_scene
from tests.pages.test_chats import PAGES
from tests.pooling import through_pgbouncer

FILES = Path(chatmemory.__file__).parent
IN_A_TRANSACTION = {"agents/newest.py": 1, "statistics/tables.py": 1}
"""The streams of rows that a transaction surrounds."""
WHO = {"by": "olga", "reason": "a test"}


def test_no_code_streams_rows_outside_a_transaction():
    """Behind a pooler, the next rows would be requested from another server connection."""
    found = {}
    for path in FILES.rglob("*.py"):
        if count := path.read_text().count(".iterator("):
            found[str(path.relative_to(FILES))] = count
    assert found == IN_A_TRANSACTION


@pytest.fixture
def pooler(transactional_db: None, postgresql: None, tmp_path: Path) -> Iterator[None]:
    with through_pgbouncer(tmp_path):
        yield


def run(name: str, *arguments: str, **options: object) -> str:
    with redirect_stdout(io.StringIO()) as output:
        call_command(f"chatmemory_{name}", *arguments, **options)
    return output.getvalue()


@pytest.mark.slow
@pytest.mark.regression
def test_each_page_works_behind_a_pooler(pooler, client, settings):
    scene = make_scene()
    key = scene.talk.key
    of_person = [*(f"/chat/{path.replace('talk', key)}" for path in (*PAGES, f"{key}/"))]
    of_person += [f"/api/{path}" for path in ("sessions/", f"sessions/{key}/", "health/")]
    of_operator = [
        scene.address(path) for path in (*(page.path for page in all_pages()), "auditentry/csv/")
    ]
    for user, mode, addresses in (
        (scene.ann, "normal", of_person),
        (scene.root, "normal", of_operator),
        (scene.root, "masked", [scene.address(page.path) for page in MASKED]),
    ):
        settings.CHATMEMORY = {**settings.CHATMEMORY, "TRANSCRIPTS": mode}
        client.force_login(user)
        for address in addresses:
            answer = client.get(address)
            assert answer.status_code < 400, address
            assert b"".join(answer), address  # also reads what is streamed
    verified = client.post(scene.address("auditentry/verify/"), {"head": ""})
    assert verified.context["findings"] == []


@pytest.mark.slow
@pytest.mark.regression
def test_each_command_works_behind_a_pooler(pooler, settings, tmp_path):
    settings.CHATMEMORY = {
        **settings.CHATMEMORY,
        "ERASURE_LIST": str(tmp_path / "erasures"),
        "UNDO_DAYS": 0,
        "USER_DELETED": "erase",
    }
    scene = make_scene()
    scope = scene.talk.scope
    exported = tmp_path / "talks.jsonl"
    exported.write_text(run("export", scope=scope, **WHO))
    run("import", str(exported), scope="server", prefix="again", **WHO)
    run("action", "trim", session=[scene.archived.pk], keep_tokens=10, **WHO)
    secret = tmp_path / "secret"
    secret.write_text("It is on its way.")
    run("redact", session=[scene.archived.pk], find_file=str(secret), yes=1, **WHO)
    for task in (
        "check",
        "expire",
        "search",
        "statistics",
        "vacuum",
        "audit_verify",
        "recover",
        "roles",
    ):
        run(task)
    assert scope in run("person", owner="ann")
    assert preview_forgetting(scopes=[scope]).removed
    run("erase", scope=scope, **WHO)
    assert "erased" in run("erased", scope=scope)
    run("person", erased=scene.talk.key)
    run("restored", **WHO)
    assert not Session.objects.filter(owner=scene.ann).exists()
