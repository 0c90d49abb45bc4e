"""The nightly export of docs/howto/warehouse.md, and the examples of docs/howto/transfer.md."""

from __future__ import annotations

import json
import shlex
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command

from chatmemory import formats, services
from chatmemory.models import Session
from chatmemory.services import Actor, user_scope
from tests.blocks import MANAGE, block_with
from tests.factories import BY, make_messages, make_user
from tests.test_examples import run_example

pytestmark = pytest.mark.django_db

PAGE = "docs/howto/warehouse.md"


@pytest.fixture
def export(tmp_path):
    """Run the command as the page does; return its output and the lines of its new files."""
    command = run_example(PAGE, "class Command")["Command"]()
    line = block_with("docs/howto/warehouse.md", "export_changes /srv").text.removeprefix(MANAGE)
    name, folder = shlex.split(line)
    assert (name, folder) == ("export_changes", "/srv/warehouse")
    seen: set[Path] = set()

    def run(**options):
        out = StringIO()
        call_command(command, str(tmp_path), stdout=out, **options)
        files = sorted({*tmp_path.glob("2*")} - seen)
        seen.update(files)
        assert not [*tmp_path.glob("*.part")]
        lines = {"gone": [], "session": [], "message": []}
        for file in files:
            for text in file.read_text().splitlines():
                row = json.loads(text)
                kind = "gone" if "-gone" in file.name else row["type"]
                lines.setdefault(kind, []).append(row)
        return out.getvalue().strip(), lines

    return run


def talk(user, key, *texts):
    services.append_messages(
        session_key=key, by=Actor.user(user), messages=make_messages(*texts), create=True
    )


def test_each_run_writes_what_has_changed_since(export):
    ann, bob = make_user("ann"), make_user("bob")
    talk(ann, "a", "one", "two")
    talk(bob, "b", "three")
    assert export()[0] == "2 changed, 0 gone"
    assert export() == ("0 changed, 0 gone", {"gone": [], "session": [], "message": []})

    talk(ann, "a", "four")
    text, lines = export()
    assert text == "1 changed, 0 gone"
    assert [row["text"] for row in lines["message"]] == ["one", "two", "four"]

    services.redact_message(
        session_key="a", scope=user_scope(ann), seq=1, by=BY, reason="a leaked key"
    )
    _, lines = export()
    assert [row.get("text", "") for row in lines["message"]] == ["", "two", "four"]

    services.update_session(session_key="b", by=Actor.user(bob), title="Old")
    _, lines = export()
    assert [(row["key"], row["title"]) for row in lines["session"]] == [("b", "Old")]


def test_what_is_purged_or_erased_leaves_and_a_restored_one_returns(export):
    ann, bob = make_user("ann"), make_user("bob")
    talk(ann, "a", "one")
    talk(bob, "b", "two")
    export()
    entry = services.purge_session(session_key="a", by=Actor.user(ann), reason="own")
    services.erase_person(by=BY, scope=user_scope(bob), reason="request 12")
    text, lines = export()
    assert text == "0 changed, 2 gone"
    assert [(row["scope"], row["key"]) for row in lines["gone"]] == [
        (user_scope(ann), "a"),
        (user_scope(bob), "b"),
    ]
    services.restore_session(by=Actor.user(ann), entry_pk=entry.pk, reason="a mistake")
    text, lines = export()
    assert text == "1 changed, 0 gone"
    assert [row["text"] for row in lines["message"]] == ["one"]


def test_a_conversation_that_moves_leaves_its_former_address(export):
    ann, bob = make_user("ann"), make_user("bob")
    talk(ann, "a", "one")
    export()
    Session.objects.update(scope=user_scope(bob), owner=bob)
    text, lines = export()
    assert text == "1 changed, 1 gone"
    assert lines["gone"][0]["scope"] == user_scope(ann)
    assert lines["session"][0]["scope"] == user_scope(bob)


def test_a_run_that_fails_is_repeated(export, monkeypatch, tmp_path):
    talk(make_user("ann"), "a", "one")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", full_disk)
        with pytest.raises(OSError, match="disk"):
            export()
    for part in tmp_path.glob("*.part"):
        part.unlink()
    text, lines = export()
    assert (text, len(lines["message"])) == ("1 changed, 0 gone", 1)


def full_disk(*_):
    raise OSError("disk full")


def test_a_run_reads_more_than_a_chunk(tmp_path):
    ann = make_user("ann")
    for number in range(5):
        talk(ann, f"k{number}", "one")
    names: dict[str, Any] = {}
    text = block_with("docs/howto/warehouse.md", "class Command").text.replace(
        "CHUNK = 1_000", "CHUNK = 2"
    )
    exec(compile(text, PAGE, "exec"), names)  # noqa: S102  # our own page
    for expected in (3, 0):
        call_command(names["Command"](), str(tmp_path), stdout=StringIO())
        assert len([*tmp_path.glob("*.jsonl")]) == expected
        for file in tmp_path.glob("*.jsonl"):
            file.unlink()


def test_a_spreadsheet_gets_csv(export, tmp_path):
    talk(make_user("ann"), "a", "=1+1")
    command = run_example(PAGE, "class Command")["Command"]()
    call_command(command, str(tmp_path), format="csv", stdout=StringIO())
    [file] = tmp_path.glob("*.csv")
    assert '"\'=1+1"' in file.read_text()


@pytest.mark.parametrize(
    ("piece", "format"), [("Created 2026", "markdown"), ('"session","title"', "csv")]
)
def test_the_transfer_page_shows_what_an_export_writes(piece, format, tmp_path):
    """Of docs/howto/transfer.md: the example of `jsonl`, in the other formats."""
    file = tmp_path / "ann.jsonl"
    file.write_text(block_with("docs/howto/transfer.md", '"type":"session"').text)
    make_user("ann")
    call_command("chatmemory_import", str(file), owner="ann", by="olga", reason="test")
    text = "".join(formats.export_sessions(Session.objects.all(), format=format))
    assert (
        text.lstrip("\ufeff")
        .replace("\r\n", "\n")
        .startswith(block_with("docs/howto/transfer.md", piece).text)
    )
