"""A file that can't be read gets one sentence with a code, and nothing is half stored."""

from __future__ import annotations

import copy
import io
import json
import re
import struct
from zipfile import ZIP_DEFLATED, ZipFile

import pytest
from django.core.management import CommandError, call_command

from chatmemory.errors import BadInput
from chatmemory.imports import archives, conversations, reading, storing
from chatmemory.imports.conversations import NoMessages
from chatmemory.imports.files import PRODUCTS
from chatmemory.imports.reading import read_items
from chatmemory.models import Message, Session
from tests.imports.samples import (
    SAMPLES,
    claude,
    claude_message,
    dumped,
    gpt,
    gpt_message,
    libre,
    libre_message,
    webui,
    webui_message,
    zipped,
)

GOOD = [gpt(gpt_message("user", "a"), id_="g1"), gpt(gpt_message("user", "b"), id_="g2")]


def refusal(run, content, capsys, **options) -> str:
    """Return the sentence of a refused file."""
    with pytest.raises(CommandError) as caught:
        run(content, **options)
    assert capsys.readouterr().err == ""
    assert not Session.objects.exists()
    return str(caught.value)


def one_error(run, content, capsys, **options) -> str:
    """Return the only error of a file; the others of its conversations are stored."""
    with pytest.raises(CommandError, match="1 invalid conversation skipped"):
        run(content, **options)
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert report["bad"] == 1
    assert report["new"] == Session.objects.count()
    line: str
    [line] = err.splitlines()
    assert f"({next(iter(report['errors']))})" in line
    return line


@pytest.mark.parametrize(
    ("content", "options", "expected"),
    [
        (b"", {"format": "chatgpt"}, "The file is empty. (empty)"),
        (b" \n", {"format": "claude"}, "The file is empty. (empty)"),
        (b"[]", {"format": "claude"}, "The file has no conversations. (empty)"),
        (b"[", {"format": "claude"}, "The file is truncated after 0 complete conversations."),
        (b"<html>", {"format": "claude"}, "The file is not valid JSON after 0 complete"),
        (b'[{"mapping": \xff', {}, "The file is not valid JSON after 0 complete"),
        (b'[{"mapping": 1e999}]', {}, "The file is not valid JSON after 0 complete"),
        (zipped(user={}), {}, "The ZIP archive has no conversations.json. (bad_shape)"),
        (zipped(conversations=[])[:-30], {}, "The ZIP archive is damaged or truncated."),
        (b"PK\3\4", {}, "The ZIP archive is damaged or truncated. (bad_shape)"),
        (zipped(conversations=[]), {}, "The file has no conversations. (empty)"),
    ],
)
def test_a_file_without_conversations_is_refused(run, capsys, content, options, expected):
    assert refusal(run, content, capsys, **options).startswith(expected)


@pytest.mark.parametrize("name", ["claude list", "librechat recursive", "open-webui history"])
def test_the_wrong_format_is_named(name, run, capsys):
    product = SAMPLES[name].key.partition(":")[0]
    message = one_error(run, SAMPLES[name].content, capsys, format="chatgpt")
    assert f"This is a conversation of {product}, not of chatgpt. (bad_shape)" in message


def test_an_unknown_format_is_a_wrong_option(run):
    with pytest.raises(CommandError, match="invalid choice"):
        call_command("chatmemory_import", "x", "--format", "x", owner="mira", by="o", reason="r")


@pytest.mark.parametrize("form", ["list", "ZIP"])
def test_the_conversations_before_the_cut_are_stored(form, run, capsys):
    cut = dumped(GOOD)[:-20]
    if form == "ZIP":
        file = io.BytesIO()
        with ZipFile(file, "w", ZIP_DEFLATED) as archive:
            archive.writestr("conversations.json", cut)
        cut = file.getvalue()
    error = one_error(run, cut, capsys)
    assert error == "End: The file is truncated after 1 complete conversations. (bad_json)"
    assert Session.objects.get().key == "chatgpt:g1"
    assert run(GOOD)["new"] == 1


@pytest.mark.parametrize("offset", [14, 48])
def test_a_wrong_checksum_or_byte_of_an_archive_is_named(run, capsys, offset):
    content = bytearray(zipped(conversations=GOOD))
    content[offset] ^= 255
    content[content.find(b"PK\1\2") + 16] = content[14]
    error = refusal(run, bytes(content), capsys)
    assert error == "The ZIP archive is damaged or truncated. (bad_shape)"


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        (7, "Conversation 2: A conversation must be an object. (bad_shape)"),
        (
            {"id": "x", "title": "lost"},
            "This is no conversation of chatgpt, claude, open-webui, librechat. (bad_shape)",
        ),
        ({"id": "x", "mapping": []}, "Conversation 2 (x): mapping must be an object of objects."),
        ({"id": "x", "mapping": {"a": 1}}, "mapping must be an object of objects. (bad_shape)"),
        ({"id": "x", "mapping": {"a": {"message": 5}}}, "mapping.a.message must have an author"),
        (gpt(gpt_message("robot", "a")), "mapping.n0.message.author.role is unknown. (bad_shape)"),
        (gpt({**gpt_message("user"), "content": "a"}), "must have an author with a role, and"),
        (
            gpt(gpt_message("user", content={"content_type": "text", "parts": "a"})),
            "mapping.n0.message.content.parts must be a list. (bad_shape)",
        ),
        ({"mapping": {"a": {"parent": "b"}, "b": {"parent": "a"}}, "current_node": "a"}, "circle"),
        (gpt(gpt_message("user", "a\0")), "contains U+0000 at position 1"),
        (gpt(gpt_message("user", "a\ud800b")), "contains U+0000 at position 1"),
        (gpt(gpt_message("user", "a\udc00")), "contains U+0000 at position 1"),
        (gpt(gpt_message("user", "x" * 1_000_001)), "(too_large)"),
        (gpt(gpt_message("user", "a"), id_="x\0"), "conversation_id contains U+0000"),
        (gpt(gpt_message("user", "a"), id_="x" * 300), "must have at most 200 characters."),
        (claude(claude_message(0, "dog", "a")), "chat_messages[0].sender must be human or"),
        ({"uuid": "x", "chat_messages": 5}, "chat_messages must be a list of objects."),
        (claude(claude_message(0, "human", content=[7])), "content must be a list of objects."),
        (claude(claude_message(0, "human", content=[], text=7)), "text must be a text."),
        (claude(*[claude_message(0, "human", "a")] * 2), "have one uuid. (bad_shape)"),
        (webui(webui_message(0, "dog", "a")), "must be user, assistant or system. (bad_shape)"),
        ({"id": "x", "chat": 5}, "chat must be an object. (bad_shape)"),
        ({"id": "x", "chat": {"messages": [5]}}, "chat.messages must be a list of objects."),
        ({"id": "x", "chat": {"history": {"messages": [1]}}}, "must be an object of objects."),
        (webui(webui_message(0, "user", 5)), "chat.messages.content must be a text."),
        (libre([libre_message(0, "a")] * 2), "have one messageId. (bad_shape)"),
        (libre([libre_message(0, 7)]), "messages.text must be a text. (bad_shape)"),
        (libre([7]), "messages must be a list of objects. (bad_shape)"),
    ],
)
def test_a_bad_conversation_is_refused_and_the_others_are_stored(run, capsys, bad, expected):
    error = one_error(run, [GOOD[0], bad, GOOD[1]], capsys)
    assert error.startswith("Conversation 2")
    assert expected in error
    assert len(error) < 220
    assert Message.objects.count() == 2


def test_what_a_bot_wrote_is_repaired_and_marked(run):
    run([gpt(gpt_message("user", "a"), gpt_message("assistant", "b\0c\ud83dd"))])
    row = Message.objects.get(role="assistant")
    assert row.text == "b\ufffdc\ufffdd"
    assert row.plain()["repaired"] == ["content"]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 64])
def test_escapes_are_read_across_the_borders_of_chunks(size, monkeypatch):
    monkeypatch.setattr(reading, "BUFFER", size)
    texts = [
        "\U0001f600",
        "\\",
        "\\\\",
        '"\\"',
        "\\ud800",
        "\\\\ud83d\\u",
        "é",
        "a\ud800",
        "\udc00",
    ]
    expected = [*texts[:-2], "a\0", "\0"]
    items = list(read_items(io.BytesIO(dumped(texts))))
    assert [item.value for item in items] == expected


class TestLimits:
    @pytest.fixture(autouse=True)
    def small(self, monkeypatch):
        monkeypatch.setattr(reading, "MAX_CONVERSATION", 40_000)
        monkeypatch.setattr(reading, "MAX_STRING", 500_000)
        monkeypatch.setattr(reading, "MAX_DEPTH", 100)
        monkeypatch.setattr(conversations, "MAX_MESSAGES", 10)
        monkeypatch.setattr(archives, "MAX_RATIO", 4)

    @pytest.mark.parametrize(
        ("bad", "code"),
        [
            (gpt(gpt_message("user", "x" * 50_000)), "too_large"),
            (gpt(gpt_message("user", "é" * 10_000)), "too_large"),  # four bytes each, at most
            ({"mapping": {}, "more": [0] * 1_000}, "too_large"),
            (gpt(*[gpt_message("user", "x")] * 11), "too_many"),
        ],
    )
    def test_a_large_conversation_is_refused_and_the_others_are_stored(
        self, run, capsys, bad, code
    ):
        assert f"({code})" in one_error(run, [GOOD[0], bad, GOOD[1]], capsys)
        assert Session.objects.count() == 2

    def test_too_many_calls_without_a_result_are_refused(self, run, capsys, monkeypatch):
        """Each call is a copy of the list of those before it."""
        monkeypatch.setattr(conversations, "MAX_OPEN_CALLS", 2)
        calls = [{"type": "tool_use", "name": "a"}, {"type": "tool_result"}] * 3
        fine = claude(claude_message(0, "assistant", content=calls))
        assert run([fine])["new"] == 1
        bad = claude(claude_message(0, "assistant", content=calls[:1] * 3), id_="k2")
        with pytest.raises(CommandError, match="1 invalid"):
            run([fine, bad])
        error = capsys.readouterr().err
        assert "More than 2 tool calls wait for their results. (too_many)" in error

    def test_too_many_conversations_with_one_id_are_refused(self, run, capsys, monkeypatch):
        monkeypatch.setattr(storing, "MAX_VERSIONS", 2)
        given = [gpt(gpt_message("user", text)) for text in "abc"]
        assert "This id has 2 sessions, which differ. (too_many)" in one_error(run, given, capsys)

    def test_a_deep_conversation_is_refused_and_the_others_are_stored(self, run, capsys):
        deep = b'{"id": "d", "mapping": ' + b'{"a":' * 5_000 + b"1" + b"}" * 5_001
        content = b"[%b,%b,%b]" % (dumped(GOOD[0]), deep, dumped(GOOD[1]))
        assert "nested deeper than 100 levels. (too_deep)" in one_error(run, content, capsys)
        assert Session.objects.count() == 2

    @pytest.mark.parametrize("unit", [b"x", b'\\"', b"\\\\"])
    def test_a_text_without_end_is_refused(self, run, capsys, unit):
        content = b'[{"mapping": "' + unit * 600_000
        error = refusal(run, content, capsys)
        assert error == "The file has a text of more than 500000 bytes. (too_large)"

    def test_an_archive_that_unpacks_to_too_much_is_refused(self, run, capsys):
        error = refusal(
            run, zipped(conversations=[gpt(gpt_message("user", " " * 900_000))]), capsys
        )
        assert error == "'conversations.json' unpacks to more than 4 times its size. (too_large)"


def test_an_archive_of_too_many_files_is_refused_before_they_are_listed(run, capsys):
    content = bytearray(zipped(conversations=GOOD))
    at = content.rfind(b"PK\5\6")
    struct.pack_into("<HH", content, at + 8, 65_535, 65_535)
    error = refusal(run, bytes(content), capsys)
    assert error == "The ZIP archive has more than 65000 files. (too_many)"


def test_a_number_of_files_that_is_followed_by_a_false_end_is_read(run, capsys):
    content = bytearray(zipped(conversations=GOOD))
    at = content.rfind(b"PK\5\6")
    struct.pack_into("<HH4x4s", content, at + 8, 65_535, 65_535, b"PK\5\6")
    error = refusal(run, bytes(content), capsys)
    assert error == "The ZIP archive has more than 65000 files. (too_many)"


def test_an_encrypted_archive_is_refused(run, capsys):
    content = bytearray(zipped(conversations=GOOD))
    for signature, offset in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        content[content.find(signature) + offset] |= 1
    assert "is encrypted; unpack it" in refusal(run, bytes(content), capsys)


def test_names_in_an_archive_are_not_paths(run, tmp_path):
    file = io.BytesIO()
    with ZipFile(file, "w") as archive:
        archive.writestr("../../conversations.json", dumped(GOOD))
        archive.writestr("__MACOSX/conversations.json", b"junk")
    before = {*tmp_path.rglob("*")}
    assert run(file.getvalue())["new"] == 2
    assert {*tmp_path.rglob("*")} - before == {tmp_path / "export.json"}


def test_ten_errors_without_a_valid_conversation_stop_the_import(run, capsys):
    with pytest.raises(CommandError, match="Stopped: no conversation was valid"):
        run([{"mapping": 1}] * 30)
    err = capsys.readouterr().err.splitlines()
    assert len(err) == 11
    assert err[-1] == "Further errors of this kind (bad_shape) are not printed."


def test_the_person_must_exist(db, tmp_path):
    file = tmp_path / "export.json"
    file.write_bytes(dumped(GOOD))
    with pytest.raises(CommandError, match="The user of this scope does not exist"):
        call_command("chatmemory_import", str(file), scope="user:999999", by="o", reason="r")


def test_own_scopes_are_only_of_the_format_jsonl(db, tmp_path):
    file = tmp_path / "export.json"
    file.write_bytes(dumped(GOOD))
    with pytest.raises(CommandError, match="The owner or the scope is required"):
        call_command("chatmemory_import", str(file), own_scopes=True, by="olga", reason="a move")


WRONG: tuple[object, ...] = (None, True, 7, 1.5, "x", [], [7], {}, {"x": 7})


def _paths(value, path=()):
    yield path
    if isinstance(value, dict):
        pairs = list(value.items())
    else:
        pairs = list(enumerate(value)) if isinstance(value, list) else []
    for key, item in pairs:
        yield from _paths(item, (*path, key))


@pytest.mark.parametrize("name", [name for name in SAMPLES if "ZIP" not in name])
def test_each_value_may_have_a_wrong_type(name):
    """Any value may be of another type: the result is a conversation or a clear error."""
    [item] = read_items(io.BytesIO(SAMPLES[name].content))
    read = PRODUCTS[SAMPLES[name].key.partition(":")[0]]
    errors = []
    for path in list(_paths(item.value))[1:]:
        for wrong in WRONG:
            changed = copy.deepcopy(item.value)
            at = changed
            for key in path[:-1]:
                at = at[key]
            at[path[-1]] = wrong
            try:
                read(changed)
            except BadInput as error:
                errors.append(error)
            except NoMessages:
                pass
    assert {error.code for error in errors} <= {"bad_shape", "bad_text", "too_large"}
    assert all(re.fullmatch(r"[ -~]+\.", str(error)) for error in errors)
    assert errors
