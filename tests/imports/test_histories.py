"""The command that imports LangChain's histories."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.core.management import CommandError, call_command
from django.db import connection, connections
from langchain_core.messages import AIMessage, HumanMessage, message_to_dict

from chatmemory import services
from chatmemory.errors import MemoryUnavailable
from chatmemory.imports import histories, tables
from chatmemory.langchain import DjangoChatMessageHistory
from chatmemory.models import AuditEntry, Message, Session
from chatmemory.services.integrity.sessions import check_integrity
from tests.factories import make_user
from tests.imports.histories import (
    ANN,
    MESSAGES,
    execute,
    insert,
    postgres_table,
    rows_of,
    table,
)

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]

HI = [HumanMessage("Hi"), AIMessage("Hello")]
BY = {"by": "olga", "reason": "a move"}


@pytest.fixture
def ann():
    return make_user("ann")


@pytest.fixture
def move(ann, capsys):
    """Import the table of the test's database; return the report."""

    def move(**options: Any) -> dict[str, Any]:
        given = {**BY, "json": True, **options}
        if "redis" not in given:
            given.setdefault("database", "default")
        if not given.keys() & {"scope", "owner_of"}:
            given["owner"] = "ann"
        call_command("chatmemory_import_langchain", **given)
        report: dict[str, Any] = json.loads(capsys.readouterr().out)
        return report

    return move


def refused(move, capsys, **options):
    """Import, and return what is printed for the histories that are refused."""
    with pytest.raises(CommandError, match="skipped"):
        move(**options)
    return capsys.readouterr().err


def read(owner, key="a"):
    return DjangoChatMessageHistory(key, owner=owner).messages


def texts(owner, key="a"):
    return [message.content for message in read(owner, key)]


def owner_of(session_id: str) -> Any:
    """Map `name-…` to a user, as a project's function does."""
    name = session_id.partition("-")[0]
    return "server" if name == "server" else get_user_model().objects.get(username=name)


def no_owner(session_id: str) -> None:
    """Find no owner."""


def test_a_table_is_imported_without_loss(move, ann):
    with table(rows_of({"a": MESSAGES, "b": HI})):
        report = move()
    assert (report["new"], report["messages"]) == (2, len(MESSAGES) + len(HI))
    assert report["more"] == {}
    assert read(ann) == MESSAGES
    assert list(read(ann)[1].additional_kwargs["channel"]) == ["b", "a"]
    assert texts(ann, "b") == ["Hi", "Hello"]
    assert Message.objects.get(text="One moment.").model == "gpt-5"
    assert Session.objects.get(key="a").origin == "langchain-sql:a"
    entries = AuditEntry.objects.filter(action="import")
    assert {(entry.actor_label, entry.reason) for entry in entries} == {
        ("olga, chatmemory_import_langchain", "a move")
    }
    assert not list(check_integrity())


def test_a_second_run_appends_what_is_new(move, ann):
    with table(rows_of({"a": HI})):
        move()
        report = move()
        assert (report["new"], report["existing"], report["more"]) == (0, 1, {})
        insert(rows_of({"a": MESSAGES[:2], "b": HI}))
        report = move()
    assert (report["new"], report["existing"]) == (1, 1)
    assert report["more"] == {"with new messages": 1}
    assert read(ann) == [*HI, *MESSAGES[:2]]


def test_a_session_that_was_continued_here_is_not_mixed(move, ann):
    with table(rows_of({"a": HI})):
        move()
        DjangoChatMessageHistory("a", owner=ann).add_messages([HumanMessage("Here.")])
        insert(rows_of({"a": [HumanMessage("There.")]}))
        assert move()["more"] == {"beside a session that differs": 1}
    assert texts(ann) == ["Hi", "Hello", "Here."]
    assert texts(ann, "a:2") == ["Hi", "Hello", "There."]


def test_a_dry_run_stores_nothing(move):
    with table(rows_of({"a": HI})):
        assert move(dry_run=True)["new"] == 1
    assert not Session.objects.exists()


def test_rows_of_histories_that_were_written_in_turn_are_separated(move, ann, monkeypatch):
    """In pages, and with names that differ in the case only."""
    monkeypatch.setattr(tables, "PAGE", 2)
    monkeypatch.setattr(tables, "INDEX_PAGE", 3)
    names = ["a", "A", "b"]
    rows = [
        rows_of({name: [HumanMessage(f"{name}{number}")]})[0]
        for number in range(5)
        for name in names
    ]
    with table(rows):
        assert move()["new"] == 3
    for name in names:
        assert texts(ann, name) == [f"{name}{number}" for number in range(5)]


def test_each_history_gets_the_owner_that_a_function_names(move, ann, capsys):
    bob = make_user("bob")
    names = ["ann-1", "bob-1", "server-1", "ann-2", "eve-1"]
    with table(rows_of(dict.fromkeys(names, HI))):
        printed = refused(move, capsys, owner_of=f"{__name__}.owner_of")
        assert "History 5 (eve-1): The function of --owner-of returned no owner. (not_found)" in (
            printed
        )
        assert "(not_found)" in refused(move, capsys, owner_of=f"{__name__}.no_owner")
    assert texts(ann, "ann-1") == texts(ann, "ann-2") == texts(bob, "bob-1") == ["Hi", "Hello"]
    assert texts(None, "server-1") == ["Hi", "Hello"]
    assert Session.objects.count() == 4


def test_a_name_of_other_characters_is_the_key(move, ann):
    with table(rows_of({"ann 1": HI, "ü" * 200: HI})):
        assert move()["new"] == 2

    assert texts(ann, "ann 1") == texts(ann, "ü" * 200) == ["Hi", "Hello"]


def test_a_prefix_is_a_part_of_the_key(move, ann):
    with table(rows_of({"a": HI})):
        move(prefix="old")
    assert texts(ann, "old:a") == ["Hi", "Hello"]


@pytest.mark.parametrize(
    ("session_id", "text", "code"),
    [
        ("a", "{", "bad_json"),
        ("a", None, "bad_shape"),
        ("a", "[]", "bad_field"),
        ("a", '{"type": "shop.Message", "data": {}}', "bad_field"),
        ("a", json.dumps(message_to_dict(HumanMessage("a\0b"))), "bad_text"),
        ("a", json.dumps(message_to_dict(HumanMessage("a\ud83d"))), "bad_text"),
        ("a", '{"type": "ai", "data": {"content": "", "usage": NaN}}', "bad_number"),
        ("a", '{"type": "remove", "data": {"content": "", "id": "1"}}', "bad_field"),
        ("a", '{"type": "chat", "data": {"content": "", "role": "judge"}}', "bad_field"),
        ("a", "[" * 40 + "]" * 40, "too_deep"),
        (None, "{}", "bad_shape"),
        ("", "{}", "bad_field"),
        ("a" * 201, "{}", "bad_field"),
    ],
)
def test_a_bad_history_is_refused_with_a_code_and_hides_no_other(
    move, ann, capsys, session_id, text, code
):
    rows = [*rows_of({session_id: HI}), (session_id, text), *rows_of({"good": HI})]
    with table(rows):
        report = refused(move, capsys)
    assert f"({code})\n" in report
    assert ("message 3" in report) == (session_id == "a")  # the id of the row
    assert Session.objects.get().key == "good"


def test_text_of_the_bot_that_no_database_stores_is_replaced(move, ann):
    with table(rows_of({"a": [HumanMessage("Hi"), AIMessage("a\0b\ud83d")]})):
        move()
    assert texts(ann) == ["Hi", "a\ufffdb\ufffd"]


@pytest.mark.parametrize(
    ("limit", "code"), [("MAX_MESSAGES", "too_many"), ("MAX_CONVERSATION", "too_large")]
)
def test_a_history_has_a_maximum_size(move, capsys, monkeypatch, limit, code):
    monkeypatch.setattr(histories, limit, 2)
    with table(rows_of({"a": [*HI, *HI]})):
        assert f"({code})" in refused(move, capsys)


def test_a_long_history_is_read_in_pages(move, ann, django_assert_max_num_queries):
    rows = rows_of({"a": [HumanMessage(f"{number}") for number in range(250)]})
    with table(rows), django_assert_max_num_queries(40):
        move()
    assert texts(ann) == [f"{number}" for number in range(250)]


def test_a_history_that_is_deleted_while_it_is_read_is_refused(move, capsys, monkeypatch):
    monkeypatch.setattr(tables, "PAGE", 2)
    convert = histories._entry_of

    def delete(stored: Any, text: Any) -> Any:
        execute("DELETE FROM message_store WHERE session_id = 'a'")
        return convert(stored, text)

    with table(rows_of({"a": [*HI, *HI]})), monkeypatch.context() as patched:
        patched.setattr(histories, "_entry_of", delete)
        assert "deleted while it was read" in refused(move, capsys)
    assert not Session.objects.exists()


@pytest.mark.usefixtures("postgresql")
def test_the_table_of_langchain_postgres_is_imported_with_its_times(move, ann):
    with postgres_table(rows_of({ANN: MESSAGES})):
        execute("UPDATE chat_history SET created_at = '2026-03-01 13:00:00+01'")
        report = move(table="chat_history")
        assert move(table="chat_history")["existing"] == 1
    assert report["new"] == 1
    assert read(ann, str(ANN)) == MESSAGES
    times = {str(row.created_at) for row in Message.objects.all()}
    assert times == {"2026-03-01 12:00:00+00:00"}


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"database": "old"}, "DATABASES has no 'old'"),
        ({"table": "absent"}, "The table 'absent' does not exist in this database"),
        ({"table": "auth_user"}, "The table 'auth_user' has no column session_id"),
        ({"key_prefix": "a:"}, "--key-prefix needs --redis"),
        ({"redis": "redis://h/", "table": "a"}, "--table needs --database"),
        ({"redis": "http://h/"}, "The URL must begin with redis://"),
        ({"redis": "redis://h/0?db=two"}, "The URL must begin with redis://"),
        ({"redis": "redis://h/0?colour=1"}, "have options of redis-py only"),
        ({"owner_of": "no.such"}, "--owner-of can't be imported"),
        ({"owner_of": "tests.factories.TALK"}, "--owner-of is no function"),
        ({"prefix": "a b"}, "--prefix must be 1 to 200 characters"),
    ],
)
def test_a_wrong_option_is_an_error(move, options, error):
    with table([]), pytest.raises(CommandError, match=error):
        move(**options)


def test_lists_of_redis_need_its_package(move, monkeypatch):
    monkeypatch.delitem(sys.modules, "chatmemory.imports.redis_lists", raising=False)
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(CommandError, match=r'pip install "django-chatmemory\[redis\]"'):
        move(redis="redis://127.0.0.1/")


def test_a_table_without_rows_is_an_error(move):
    with table([]), pytest.raises(CommandError, match=r"There are no histories\. \(empty\)"):
        move()


@pytest.mark.usefixtures("postgresql")
def test_a_table_that_can_not_be_read_is_an_error(move, monkeypatch):
    columns = tables.Table._existing_columns

    def drop(own: tables.Table) -> list[str]:
        found: list[str] = columns(own)
        execute("DROP TABLE message_store")
        return found

    monkeypatch.setattr(tables.Table, "_existing_columns", drop)
    with table(rows_of({"a": HI})), pytest.raises(CommandError, match="UndefinedTable"):
        move()


def test_a_database_that_fails_is_tried_again(move, monkeypatch):
    def fail(*_: object) -> None:
        raise MemoryUnavailable

    with table(rows_of({"a": HI})):
        monkeypatch.setattr(histories, "_convert", fail)
        with pytest.raises(CommandError, match=r"History 1 \(a\): .* Run this again to continue"):
            move()


def test_a_database_that_cannot_be_opened_is_reported(move, monkeypatch, tmp_path):
    settings = {**connection.settings_dict, "ENGINE": "django.db.backends.sqlite3", "OPTIONS": {}}
    place = str(tmp_path / "absent" / "old.sqlite3")
    monkeypatch.setitem(connections.databases, "old", {**settings, "NAME": place})
    connections["old"].alias = "default"  # the tests refuse others
    try:
        with pytest.raises(CommandError, match="Run this again to continue"):
            move(database="old")
    finally:
        del connections["old"]


def test_another_database_is_read(move, ann, tmp_path):
    """A file of SQLite, which is only read."""
    settings = {**connection.settings_dict, "ENGINE": "django.db.backends.sqlite3"}
    connections.databases["old"] = {
        **settings,
        "NAME": str(tmp_path / "old.sqlite3"),
        "OPTIONS": {},
    }
    old = connections["old"]
    old.alias = "default"  # the tests refuse others
    try:
        with old.cursor() as cursor:
            cursor.execute(
                "CREATE TABLE chats (id INTEGER PRIMARY KEY, session_id TEXT, message TEXT)"
            )
            cursor.executemany(
                "INSERT INTO chats (session_id, message) VALUES (%s, %s)", rows_of({"a": HI})
            )
        assert move(database="old", table="chats")["new"] == 1
    finally:
        old.close()
        del connections["old"], connections.databases["old"]
    assert texts(ann) == ["Hi", "Hello"]
    assert services.sessions_of(services.Actor.user(ann)).count() == 1
