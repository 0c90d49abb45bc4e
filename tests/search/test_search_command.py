"""`chatmemory_search`, and an index that a dump has not, or only in part."""

from __future__ import annotations

import zlib
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from chatmemory.search import search_messages
from chatmemory.search.models import SearchBlock
from chatmemory.services import append_messages, redact_message
from chatmemory.services.integrity.database_restore import recover_restored_database
from tests.factories import BY, TALK, make_messages, make_session

pytestmark = [pytest.mark.django_db, pytest.mark.database]


@pytest.fixture
def session():
    session = make_session()
    append_messages(**TALK, messages=make_messages("a kettle", "green", "kettles", "invoice"))
    call_command("chatmemory_search")
    assert SearchBlock.objects.count() == 1
    return session


def found(query: str) -> list[int]:
    return sorted(hit.seq for hit in search_messages(by=BY, scope="server", query=query).hits)


def check() -> str:
    try:
        call_command("chatmemory_search", "check")
    except CommandError as error:
        return str(error)
    return ""


WRONG: dict[str, dict[str, Any]] = {
    "cut": {"postings": b"\1\0"},
    "of-other-words": {"words": zlib.compress(b"elephant")},
    "of-damaged-words": {"words": b"no zlib"},
    "of-an-impossible-range": {"high": 129},
    "of-a-shorter-range": {"high": 3},
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_block_is_found_and_can_be_replaced(session, name):
    assert not check()
    SearchBlock.objects.update(**WRONG[name])
    assert "1 wrong block" in check()
    call_command("chatmemory_search", "drop")
    assert not SearchBlock.objects.exists()
    assert found("kettle") == [1, 3]
    call_command("chatmemory_search")
    assert not check()
    assert found("kettle") == [1, 3]


@pytest.mark.parametrize("name", ["cut", "of-damaged-words"])
def test_a_block_of_damaged_bytes_is_ignored_by_each_search(session, name):
    SearchBlock.objects.update(**WRONG[name])
    hits = search_messages(by=BY, scope="server", query="ket", mode="prefix").hits
    assert sorted(hit.seq for hit in hits) == [1, 3]
    assert found("kettle") == [1, 3]


def test_a_dump_without_blocks_is_searched_and_indexed(session):
    SearchBlock.objects.all().delete()
    assert found("kettle") == [1, 3]
    call_command("chatmemory_search")
    assert SearchBlock.objects.count() == 1


def test_blocks_of_another_backup_do_not_outlive_its_restore(session):
    older = list(SearchBlock.objects.values("session", "low", "high", "number", "analyzer"))
    redact_message(**TALK, seq=1, reason="")
    (values,) = older
    values["session_id"] = values.pop("session")
    SearchBlock.objects.create(**values, postings=b"", words=zlib.compress(b"kettl"))
    recover_restored_database(by=BY, reason="")
    assert not SearchBlock.objects.exists()
    call_command("chatmemory_search")
    assert found("kettle") == [3]
    assert not check()


def test_another_release_of_zlib_makes_no_block_wrong(session):
    block = SearchBlock.objects.get()
    words = zlib.compress(zlib.decompress(bytes(block.words)), 1)
    assert words != bytes(block.words)
    SearchBlock.objects.update(words=words)
    assert not check()


def test_another_language_indexes_again(session, settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "SEARCH_LANGUAGE": "german"}
    assert found("kettle") == [1]
    call_command("chatmemory_search")
    (block,) = SearchBlock.objects.all()
    assert block.analyzer.startswith("1:german")
    assert found("kettle") == [1]
    assert not check()
