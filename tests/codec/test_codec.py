"""Strict JSON, checks of text and keys, and messages encoded and decoded."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import time
from datetime import UTC, datetime
from itertools import product
from types import MappingProxyType

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from chatmemory import codec
from chatmemory.codec import (
    MAX_CALLS,
    check_client_id,
    check_key,
    check_storable,
    check_text,
    check_value,
    count_tokens,
    decode,
    dump_json,
    encode,
    is_new_key,
    key_of_address,
    new_client_id,
    parse_json,
    text_of,
)
from chatmemory.errors import BadInput, NotFound
from chatmemory.logs import forget_logged

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | FLOATS | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
BLOCKS = st.lists(TEXT | st.builds(lambda text: {"type": "text", "text": text}, TEXT), max_size=4)
RESERVED = ("repaired", "cut", "unknown_blocks", "quarantined", "role", "content", "tool_calls")
MESSAGES = st.builds(
    lambda role, content, more: {"role": role, "content": content, **more},
    st.sampled_from(codec.ROLES),
    TEXT | BLOCKS,
    st.dictionaries(TEXT.filter(lambda key: key not in RESERVED), JSON, max_size=4),
)
IMAGE = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
PIXEL = {"type": "image", "url": "data:image/png;base64,AAAA"}


def round_trip(message, *, lenient: bool = False) -> dict:
    row = encode(message, lenient=lenient)
    return decode(row.role, row.text, row.body)


def refused(function, *args, **kwargs) -> BadInput:
    with pytest.raises(BadInput) as caught:
        function(*args, **kwargs)
    return caught.value


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


def deep(depth: int) -> list:
    value: list = []
    for _ in range(depth - 1):
        value = [value]
    return value


def circular() -> list:
    value: list = []
    value.append(value)
    return value


class WithoutText:
    def __str__(self):
        raise RuntimeError


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        ("", "bad_json"),
        ("{oops", "bad_json"),
        ('{"a":1}x', "bad_json"),
        ('{"a":1,"a":1}', "bad_json"),
        ('[{"b":{"a":1,"x":2,"a":3}}]', "bad_json"),
        ('"\t"', "bad_json"),
        ("\ufeff{}", "bad_json"),
        ('{"a":"é"}'.encode("latin-1"), "bad_json"),
        ("{}".encode("utf-16"), "bad_json"),
        ("NaN", "bad_number"),
        ("[Infinity]", "bad_number"),
        ("-Infinity", "bad_number"),
        ("1e999", "bad_number"),
        ("-1e999", "bad_number"),
        ("9" * 5_000, "bad_number"),
        (str(2**53 + 1), "bad_number"),
        (str(-(2**53) - 1), "bad_number"),
        (nested(33), "too_deep"),
        ('{"a":' * 33 + "1" + "}" * 33, "too_deep"),
        ("[" * 100_000, "too_deep"),
        (nested(100_000), "too_deep"),
    ],
    ids=lambda value: f"{len(value)} {value[:20]!a}",
)
def test_invalid_json_is_refused(sent, code):
    assert refused(parse_json, sent).code == code


def test_the_error_has_the_position_of_invalid_json():
    assert "character 6" in str(refused(parse_json, '{"a": oops}'))
    assert "byte 2" in str(refused(parse_json, b'{"\xff'))


@pytest.mark.parametrize(
    "sent", ["null", "[]", '"x"', "5", str(2**53), "-0.5", nested(32), '"[\\"' + "[" * 99 + '"']
)
def test_strict_json_is_parsed_as_by_the_standard_library(sent):
    assert parse_json(sent) == parse_json(sent.encode()) == json.loads(sent)


def test_objects_and_lists_keep_their_order():
    sent = '{"b": [1, {"a": null}, {}], "a": {"a": "x"}, "c": -1.5}'
    read = parse_json(sent.encode())
    assert read == {"b": [1, {"a": None}, {}], "a": {"a": "x"}, "c": -1.5}
    assert isinstance(read, dict)
    assert list(read) == ["b", "a", "c"]


def test_json_of_the_app_can_contain_larger_integers():
    assert parse_json(str(2**70), is_ours=True) == 2**70
    assert parse_json("9" * 4_300, is_ours=True) == int("9" * 4_300)
    assert refused(parse_json, str(2**70)).code == "bad_number"
    for sent in ("9" * 5_000, "NaN", "1e999"):
        assert refused(lambda sent: parse_json(sent, is_ours=True), sent).code == "bad_number"


def test_a_text_is_storable_without_nul_and_lone_surrogates():
    assert check_storable("\x07\ud7ff\U0001f600", "text") == "\x07\ud7ff\U0001f600"
    for text in ("\0", "\ud800"):
        assert refused(lambda text: check_storable(text, "body"), text).field == "body"


@given(st.binary() | st.text())
@example(b'{"a":1e400}')
@example("[" * 2_000)
def test_any_input_is_parsed_or_raises_bad_input(sent):
    try:
        parse_json(sent)
    except BadInput as error:
        assert error.code in {"bad_json", "bad_number", "too_deep"}  # noqa: PT017  # may pass


@pytest.mark.slow
@pytest.mark.parametrize("piece", ['\\"', '"\\', '["', "[]", "1", " ", "-", '{"a":1,', "1e"])
def test_a_megabyte_of_json_is_parsed_in_linear_time(piece):
    began = time.monotonic()
    for start in ("", '"', "[", "[]" * 40 + '"'):
        with contextlib.suppress(BadInput):
            parse_json(start + piece * (1_000_000 // len(piece)))
    assert time.monotonic() - began < 10  # quadratic time would be minutes


@given(JSON)
def test_json_is_written_on_one_line_and_parsed_back(value):
    written = dump_json(value)
    assert json.loads(written) == value
    assert "\n" not in written


def test_an_error_quotes_at_most_80_characters_of_the_input():
    key = "k\x1b" * 1_000
    for error in (
        refused(parse_json, f'{{"{"x" * 500}":1,"{"x" * 500}":2}}'),
        refused(parse_json, "9" * 5_000),
        refused(encode, {"role": key, "content": ""}),
        refused(encode, {"role": "tool", "content": "", "a": {key: object()}}),
        refused(check_value, {key: "\0"}, "metadata"),
    ):
        assert len(str(error)) < 160
        assert len(error.field) <= 80
        assert str(error).isprintable()


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (None, "bad_field"),
        (5, "bad_field"),
        (True, "bad_field"),
        (["a"], "bad_field"),
        (b"a", "bad_field"),
        ("", "empty"),
        (" \n\t ", "empty"),
        ("\u200b\u200d\u2060", "empty"),
        ("\ufeff", "empty"),
        ("\u3164", "empty"),
        ("x" * 32_001, "too_large"),
        ("a\0", "bad_text"),
        ("a\ud800", "bad_text"),
        ("a\x1b[31m", "bad_text"),
        ("a\x07", "bad_text"),
        ("a\x9b", "bad_text"),
    ],
    ids=lambda value: f"{ascii(value)[:20]}",
)
def test_an_invalid_text_is_refused(text, code):
    error = refused(check_text, text, field="asked")
    assert (error.code, error.field) == (code, "asked")


@pytest.mark.parametrize(
    "text",
    [
        "  spaces and lines stay \r\n\t",
        "\uffff \ue000",
        "👩\u200d👩\u200d👧\u200d👦",
        "שלום \u202eabc",
        "a" + "\u0301" * 10_000,
        "x" * 32_000,
        "🏴\U000e0067\U000e007f",
    ],
    ids=lambda value: ascii(value)[:20],
)
def test_a_valid_text_is_returned_unchanged(text):
    assert check_text(text) is text


def test_a_text_is_limited_by_the_setting_or_the_argument(settings):
    settings.CHATMEMORY = {"MAX_MESSAGE_CHARS": 3}
    assert refused(check_text, "four").limit == 3
    assert check_text("four", max_chars=4) == "four"


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ({"a": ["ok", "\0"]}, "metadata.a[1]"),
        ({"a": {"b": "\ud800"}}, "metadata.a.b"),
        ({"a\x1b": 1}, r"metadata.a\x1b"),
    ],
    ids=["NUL", "surrogate", "key"],
)
def test_the_error_has_the_path_of_a_bad_text_in_metadata(value, field):
    error = refused(check_value, value, "metadata")
    assert (error.code, error.field) == ("bad_text", field)


def test_metadata_can_contain_tabs_and_line_breaks():
    check_value({"a": ["tab\t", "line\r\n", 1.5, None, True]}, "metadata")


@pytest.mark.parametrize("value", [None, 5, "", "a" * 65, "a b", "ä", "a\n", "a@b"])
def test_an_invalid_client_id_is_refused(value):
    assert refused(check_client_id, value).field == "client_id"


@pytest.mark.parametrize("value", [None, 5, "", "a" * 201, "a b", "..%2f", "a/b", "a\n"])
def test_an_invalid_key_is_refused(value):
    assert refused(check_key, value).field == "key"


def test_valid_client_ids_and_keys_are_returned_unchanged():
    assert check_client_id("Az09-_.:") == "Az09-_.:"


def test_new_client_ids_are_valid_random_and_short():
    ids = {check_client_id(new_client_id()) for _ in range(100)}
    assert len(ids) == 100
    assert {len(each) for each in ids} == {22}
    assert check_key("user@example.com:1") == "user@example.com:1"
    assert key_of_address("user@example.com:1") == "user@example.com:1"


@pytest.mark.parametrize("text", ["", "a" * 201, "a b", "..%2f", "a/b", "a\n"])
def test_an_invalid_key_in_a_url_is_not_found(text):
    with pytest.raises(NotFound):
        key_of_address(text)


@pytest.mark.parametrize(
    ("key", "is_new"),
    [
        ("1b4e28ba-2fa1-41d2-883f-0016d3cca427", True),
        ("1b4e28ba-2fa1-11d2-883f-0016d3cca427", False),  # version 1
        ("1b4e28ba2fa141d2883f0016d3cca427", False),
        ("{1b4e28ba-2fa1-41d2-883f-0016d3cca427}", False),
        ("x", False),
    ],
)
def test_only_a_version_4_uuid_is_a_new_key(key, is_new):
    assert is_new_key(key) is is_new


@given(MESSAGES)
@example({"content": "the order of keys", "role": "user"})
@example({"role": "tool", "content": [], "b": {"z": 1, "a": 2}, "a": [1.0, 1e22, 2**70]})
def test_a_message_is_decoded_as_it_was_encoded_in_the_same_key_order(message):
    assert dump_json(round_trip(message)) == dump_json(message)


@given(
    st.builds(
        lambda pairs: dict(pairs),
        st.permutations(
            [("role", "user"), ("content", "a"), ("role", "tool"), ("content", "b\0"), ("id", 1)]
        ).map(lambda pairs: pairs[:3]),
    )
    | st.fixed_dictionaries({"role": st.sampled_from(codec.ROLES), "content": st.text()})
    | MESSAGES,
    st.booleans(),
)
def test_a_message_that_is_only_text_is_encoded_like_any_other(message, lenient):
    """It is not copied; another mapping of the same items is."""

    def encoded(given):
        try:
            return encode(given, lenient=lenient)
        except BadInput as error:
            return error.code, error.field, str(error)

    assert encoded(message) == encoded(MappingProxyType(message))


def test_a_text_of_a_subclass_is_copied():
    class Shown(str):
        def __str__(self) -> str:
            return "other"

    row = encode({"role": "user", "content": Shown("stored")})
    assert (type(row.text), row.text) == (str, "stored")


@given(TEXT)
def test_a_plain_text_has_no_body(text):
    row = encode({"role": "user", "content": text})
    assert (row.role, row.text, row.body) == ("user", text, None)


@pytest.mark.parametrize("role", ["root", "developer", "", None, 5, ["user"]])
def test_an_unknown_role_is_refused(role):
    error = refused(encode, {"role": role, "content": ""}, field="messages[2]")
    assert (error.code, error.field) == ("bad_field", "messages[2].role")


@pytest.mark.parametrize("content", [None, 5, {"type": "text"}, b"a"])
def test_content_that_is_neither_text_nor_list_is_refused(content):
    assert refused(encode, {"role": "user", "content": content}).field == "content"


def test_a_missing_content_and_an_invalid_block_are_refused():
    assert refused(encode, {"role": "user"}).field == "content"
    assert refused(encode, {"role": "user", "content": ["a", 5]}).field == "content[1]"


@pytest.mark.parametrize("bad", ["a\0b", "a\ud800b"], ids=["NUL", "surrogate"])
def test_unstorable_text_is_refused_from_users_and_repaired_from_others(bad):
    error = refused(encode, {"role": "user", "content": [{"type": "text", "text": bad}]})
    assert (error.code, error.field) == ("bad_text", "content[0].text")

    back = round_trip({"role": "assistant", "content": bad, "args": {"x": [bad], bad: 1}})
    assert back["content"] == "a\ufffdb"
    assert back["args"] == {"x": ["a\ufffdb"], "a\ufffdb": 1}
    assert back["repaired"] == ["content", "args.x[0]", f"args.{ascii(bad)[1:-1]}"]


def test_keys_that_a_repair_makes_equal_are_numbered():
    artifact = {"a\0": 1, "a\ufffd_1": 2, "a\ufffd": 3, "a" + chr(0xD800): 4}
    back = round_trip({"role": "tool", "content": "", "artifact": artifact})
    assert back["artifact"] == {"a\ufffd": 1, "a\ufffd_1": 2, "a\ufffd_2": 3, "a\ufffd_3": 4}


def test_many_such_keys_are_repaired_in_linear_time():
    surrogates = map(chr, range(0xD800, 0xD800 + 100))
    artifact = {"".join(pair): 1 for pair in product(surrogates, repeat=2)}
    began = time.monotonic()
    back = round_trip({"role": "tool", "content": "", "artifact": artifact})
    assert len(back["artifact"]) == 10_000
    assert time.monotonic() - began < 10  # quadratic time would be minutes


@pytest.mark.parametrize(
    ("value", "code", "at", "written"),
    [
        (datetime(2026, 11, 21, tzinfo=UTC), "bad_field", "", "2026-11-21 00:00:00+00:00"),
        (b"by\xfftes", "bad_field", "", "by\ufffdtes"),
        ({"one"}, "bad_field", "", "{'one'}"),
        (WithoutText(), "bad_field", "", "<WithoutText>"),
        (math.nan, "bad_number", "", None),
        (-math.inf, "bad_number", "", None),
        (10**5_000, "bad_number", "", None),
        (circular(), "bad_field", "[0]", [None]),
        ({5: 1}, "bad_field", ".5", {"5": 1}),
    ],
    ids=["datetime", "bytes", "set", "without text", "nan", "infinity", "huge", "circular", "key"],
)
def test_a_value_that_json_cannot_represent_is_refused_or_repaired_if_lenient(
    value, code, at, written
):
    message = {"role": "assistant", "content": "hi", "additional_kwargs": {"a": [1, value]}}
    path = f"additional_kwargs.a[1]{at}"
    error = refused(encode, message)
    assert (error.code, error.field) == (code, path)
    assert path in str(error)

    back = round_trip(message, lenient=True)
    assert back["additional_kwargs"] == {"a": [1, written]}
    assert back["repaired"] == [path]


def test_invalid_content_is_repaired_if_lenient():
    assert round_trip({"role": "assistant", "content": None}, lenient=True)["content"] == ""
    assert round_trip({"role": "tool", "content": {"a": 1}}, lenient=True)["content"] == "{'a': 1}"
    assert round_trip({"role": "tool", "content": ["a", 5]}, lenient=True)["content"] == ["a", "5"]
    assert round_trip({"role": "tool"}, lenient=True)["repaired"] == ["content"]


def test_the_maximum_depth_of_a_message_is_64():
    message = {"role": "tool", "content": "", "artifact": deep(63)}
    assert round_trip(message) == message

    message["artifact"] = deep(64)
    assert refused(encode, message).code == "bad_field"
    back = round_trip(message, lenient=True)
    assert "quarantined" not in back
    assert len(back["repaired"]) == 1


def test_a_value_of_depth_100_000_is_repaired_if_lenient():
    message = {"role": "tool", "content": "", "artifact": deep(100_000)}
    assert round_trip(message, lenient=True)["repaired"]


def test_at_most_fifty_repairs_are_listed():
    back = round_trip({"role": "tool", "content": "", "artifact": ["\0"] * 1_000})
    assert len(back["repaired"]) == 50


def test_a_repaired_message_keeps_its_list_of_repairs():
    once = round_trip({"role": "tool", "content": "a\0", "artifact": 1})
    assert round_trip(once) == once
    assert round_trip({**once, "artifact": "\0"})["repaired"] == ["content", "artifact"]


def test_a_serialized_secret_of_langchain_is_plain_data():
    secret = {"lc": 1, "type": "secret", "id": ["PATH"]}
    message = {"role": "user", "content": [secret], "additional_kwargs": secret}
    assert round_trip(message) == {**message, "unknown_blocks": ["secret"]}


def test_all_blocks_are_kept_and_unknown_ones_listed():
    unknown: list = [{"type": "hologram", "data": {"z": 1}}, {"x": 1}, {"type": [1]}]
    known: list = ["a", {"type": "text", "text": "b"}, IMAGE, PIXEL]
    message = {"role": "user", "content": known}
    assert round_trip(message) == message

    message["content"] = known + unknown
    assert round_trip(message) == {**message, "unknown_blocks": ["hologram", "untyped"]}
    assert encode(message).text == "ab"


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}},
        {"type": "image_url", "image_url": " FILE:///etc/passwd"},
        {"type": "image", "url": "file:/etc/passwd"},
        {"type": "media", "source": [{"fileUri": "File:/etc/passwd"}]},
        {"url": "file:///etc/passwd"},
    ],
)
def test_a_block_with_a_file_url_is_refused_or_replaced_if_lenient(block):
    message = {"role": "assistant", "content": ["a", block]}
    assert refused(encode, message).field == "content[1]"

    back = round_trip(message, lenient=True)
    assert back["repaired"] == ["content[1]"]
    assert "passwd" not in dump_json(back)


def test_a_file_url_in_the_arguments_of_a_tool_is_kept():
    block = {"type": "tool_use", "id": "1", "name": "open", "input": {"url": "file:///tmp/a"}}
    message = {"role": "assistant", "content": [block]}
    assert round_trip(message) == message


def test_an_image_that_is_neither_on_the_web_nor_inline_is_listed():
    message = {"role": "user", "content": [{"type": "image", "url": "ftp://example.org/a"}]}
    assert round_trip(message)["unknown_blocks"] == ["image"]


def test_a_long_reply_is_truncated_if_lenient_and_cut_is_its_length(settings):
    settings.CHATMEMORY = {"MAX_REPLY_CHARS": 4}
    assert round_trip({"role": "assistant", "content": "12345678"}, lenient=True) == {
        "role": "assistant",
        "content": "1234",
        "cut": 8,
    }
    blocks = ["123", {"type": "text", "text": "456", "id": 1}, IMAGE, "7"]
    assert round_trip({"role": "tool", "content": blocks}, lenient=True) == {
        "role": "tool",
        "content": ["123", {"type": "text", "text": "4", "id": 1}, IMAGE, ""],
        "cut": 7,
    }
    assert encode({"role": "user", "content": "12345678"}).text == "12345678"
    fits = encode({"role": "assistant", "content": "1234"})
    assert (fits.text, fits.body) == ("1234", None)


@pytest.mark.regression
@pytest.mark.parametrize("role", ["assistant", "tool", "system"])
def test_a_text_above_the_limit_is_refused_unless_lenient(settings, role):
    settings.CHATMEMORY = {"MAX_REPLY_CHARS": 4}
    with pytest.raises(BadInput, match="5 characters; the limit is 4") as caught:
        encode({"role": role, "content": "12345"}, field="messages[3]")
    assert (caught.value.code, caught.value.limit) == ("too_large", 4)
    assert caught.value.field == "messages[3].content"


@pytest.mark.parametrize(
    ("message", "answered"),
    [
        ({"role": "tool", "tool_call_id": "c1"}, "c1"),
        ({"role": "tool", "tool_call_id": 1}, None),
        ({"role": "tool", "kind": "function", "tool_call_id": "c1"}, None),
        ({"role": "assistant", "tool_call_id": "c1"}, None),
        ({"role": "tool"}, None),
    ],
)
def test_only_a_tool_message_answers_a_call(message, answered):
    assert codec.answered_call(message) == answered


def test_a_reply_of_five_megabytes_is_truncated():
    row = encode({"role": "assistant", "content": "x" * 5_000_000}, lenient=True)
    assert len(row.text) == 1_000_000
    assert decode(row.role, row.text, row.body)["cut"] == 5_000_000


def tool_calls(number):
    return [{"name": "weather", "args": {}, "id": f"call {n}"} for n in range(number)]


@pytest.mark.regression
def test_more_tool_calls_than_the_limit_are_refused_unless_lenient():
    message = {"role": "assistant", "content": "", "tool_calls": tool_calls(MAX_CALLS + 1)}
    with pytest.raises(BadInput, match="1,001 tool calls; the limit is 1,000") as caught:
        encode(message, field="messages[3]")
    assert (caught.value.code, caught.value.limit) == ("too_many", MAX_CALLS)
    assert caught.value.field == "messages[3].tool_calls"
    row = encode(message, lenient=True)
    plain = decode(row.role, row.text, row.body)
    assert (plain["tool_calls"], plain["cut_calls"]) == (tool_calls(MAX_CALLS), MAX_CALLS + 1)
    at_limit = encode({**message, "tool_calls": tool_calls(MAX_CALLS)})
    assert "cut_calls" not in decode(at_limit.role, at_limit.text, at_limit.body)


def test_valid_and_invalid_tool_calls_count_together():
    calls = {"tool_calls": tool_calls(600), "invalid_tool_calls": tool_calls(600)}
    row = encode({"role": "assistant", "content": "", **calls}, lenient=True)
    plain = decode(row.role, row.text, row.body)
    assert [len(plain[name]) for name in calls] == [600, 400]
    assert plain["cut_calls"] == 1_200


def test_the_name_of_the_model_is_truncated_to_its_column():
    row = encode({"role": "tool", "content": ""}, model="m\0" + "x" * 200, status="failed", step=2)
    assert row.model == "m\ufffd" + "x" * 98
    assert (row.status, row.step) == ("failed", 2)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("{broken", "bad_json"),
        ("", "bad_json"),
        ("9" * 5_000, "bad_json"),
        ("[]", "bad_shape"),
        ("null", "bad_shape"),
        ('{"content":"x"}', "bad_shape"),
        ('{"role":"user"}', "bad_shape"),
        ('{"role":"user","content":null}', "bad_shape"),
        ('{"role":"user","content":[5]}', "bad_shape"),
        ('{"role":"assistant","content":"x"}', "bad_shape"),
        ('{"role":"user","content":"","a":NaN}', "bad_number"),
        ('{"role":"user","content":"","a":1e999}', "bad_number"),
        (r'{"role":"user","content":"","a":"\ud800"}', "bad_text"),
        ('{"role":"user","content":"","a":' + nested(5_000) + "}", "too_deep"),
        (nested(5_000), "too_deep"),
    ],
    ids=lambda value: f"{len(value)} {value[:40]}",
)
def test_an_undecodable_row_is_quarantined_and_logged_once(body, kind, caplog):
    forget_logged()
    for _ in range(2):
        assert decode("user", "the text", body) == {
            "role": "user",
            "content": "the text",
            "quarantined": True,
        }
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert f"({kind})" in record.getMessage()
    assert "the text" not in record.getMessage()


def test_a_row_of_an_unknown_role_is_quarantined():
    assert decode("root", "x", None)["quarantined"] is True
    assert decode("root", "x", '{"role":"root","content":"x"}')["quarantined"] is True


def test_escaped_surrogate_pairs_are_decoded():
    body = r'{"role":"user","content":"\\ud800 \ud83d\ude00"}'
    assert decode("user", "", body)["content"] == "\\ud800 😀"


@given(st.text())
def test_decoding_never_raises(body):
    assert decode("user", "text", body)["role"] == "user"


def test_text_of_joins_the_text_blocks():
    assert text_of("a") == "a"
    assert text_of(["a", {"type": "text", "text": "b"}, {"type": "reasoning", "text": "c"}]) == "ab"
    assert text_of(None) == text_of({"type": "text", "text": "a"}) == ""


def test_a_token_is_four_characters_and_a_message_has_three_more():
    def tokens(chars: int) -> int:
        return math.ceil(chars / 4) + 3

    calls = [{"name": "f", "args": {}}]
    assert count_tokens({"content": ""}) == 3
    assert count_tokens({"content": "12345"}) == 5
    assert count_tokens({"content": "", "tool_calls": calls}) == tokens(len(dump_json(calls)))
    cited = {"type": "reasoning", "summary": ["1"]}
    assert count_tokens({"content": [cited, "1234"]}) == tokens(4 + len(dump_json([cited])))


BASE64 = "QUJD" * 20_000


@pytest.mark.regression
@pytest.mark.parametrize(
    "block",
    [
        IMAGE,
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{BASE64}"}},
        {"type": "image", "base64": BASE64, "mime_type": "image/png"},
        {"type": "image", "source": {"type": "base64", "data": BASE64}},
        {"type": "input_audio", "input_audio": {"data": BASE64, "format": "wav"}},
        {"type": "file", "file": {"file_data": BASE64}},
        {"type": "document", "source": {"type": "base64", "data": BASE64}},
        {"type": "media", "mime_type": "application/pdf", "data": BASE64},
        {"type": "unknown", "base64": BASE64},
    ],
)
def test_an_image_audio_or_file_counts_a_flat_number_of_tokens(settings, block):
    assert count_tokens({"content": ["1234", block]}) == 1_004
    settings.CHATMEMORY = {"MEDIA_TOKENS": 85}
    assert count_tokens({"content": [block, block, "1234"]}) == 4 + 2 * 85


def test_an_image_in_the_result_of_a_tool_counts_a_flat_number_of_tokens():
    image = {"type": "image", "source": {"type": "base64", "data": BASE64}}
    result = {"type": "tool_result", "content": [{"type": "text", "text": "a" * 400}, image]}
    assert 1_100 < count_tokens({"content": [result]}) < 1_150


def test_a_text_document_counts_as_text():
    document = {"type": "document", "source": {"type": "text", "data": "a" * 40_000}}
    assert 10_000 < count_tokens({"content": [document]}) < 10_100


@pytest.mark.regression
def test_a_message_above_the_bytes_is_refused_with_its_size_and_the_limit(settings):
    settings.CHATMEMORY = {"MAX_MESSAGE_BYTES": 100}
    block = {"type": "image", "base64": "A" * 100}
    for role, more in product(codec.ROLES, [{"content": [block]}, {"artifact": "é" * 50}]):
        error = refused(encode, {"role": role, "content": "", **more}, field="messages[3]")
        assert (error.code, error.field, error.limit) == ("too_large", "messages[3]", 100)
        assert "bytes; the limit is 100." in str(error)
    assert encode({"role": "user", "content": "é" * 100}).body is None


@pytest.mark.regression
def test_a_run_removes_the_largest_parts_of_a_message_above_the_bytes(settings):
    settings.CHATMEMORY = {"MAX_MESSAGE_BYTES": 700}
    message = {
        "role": "assistant",
        "content": [
            "é" * 50,
            {"type": "text", "text": "kept", "extras": "A" * 1_000},
            {"type": "image", "base64": "A" * 2_000},
            PIXEL,
        ],
        "tool_calls": [{"id": "1", "name": "draw", "args": {"svg": "A" * 3_000}}],
        "artifact": "A" * 1_500,
        "id": "m1",
    }
    row = encode(message, lenient=True)
    back = decode(row.role, row.text, row.body)
    assert len(row.body.encode()) <= 700
    assert back == {
        "role": "assistant",
        "content": [
            "é" * 50,
            {"type": "text", "text": "kept"},
            {"type": "text", "text": "[a block of 2,028 bytes was removed]"},
            PIXEL,
        ],
        "tool_calls": [{"id": "1", "name": "draw", "args": {}}],
        "id": "m1",
        "repaired": ["tool_calls[0].args", "content[2]", "artifact", "content[1]"],
    }
    assert row.text == "é" * 50 + "kept" + "[a block of 2,028 bytes was removed]"


@pytest.mark.regression
def test_a_users_text_above_both_limits_is_refused(settings):
    settings.CHATMEMORY = {"MAX_REPLY_CHARS": 4, "MAX_MESSAGE_CHARS": 6}
    assert encode({"role": "user", "content": "123456"}).text == "123456"
    assert refused(encode, {"role": "user", "content": "1234567"}).limit == 4


def count_words(text: str) -> int:
    return len(text.split())


def test_the_function_in_the_setting_counts_tokens(settings):
    settings.CHATMEMORY = {"TOKEN_COUNTER": f"{__name__}.count_words"}
    assert encode({"role": "user", "content": "one two three"}).tokens == 3


@pytest.mark.parametrize(
    "counter",
    [
        lambda text: 1 / 0,
        lambda text: None,
        lambda text: "many",
        lambda text: -1,
        lambda text: math.nan,
        lambda text: 2**31,
        None,
    ],
    ids=["raises", "none", "text", "negative", "nan", "too_large", "no_function"],
)
@pytest.mark.parametrize("lenient", [False, True])
def test_a_failing_counter_loses_no_message_and_is_logged_once(
    settings, caplog, monkeypatch, counter, lenient
):
    forget_logged()
    settings.CHATMEMORY = {"TOKEN_COUNTER": f"{__name__}.count_words"}
    monkeypatch.setitem(globals(), "count_words", counter)
    for _ in range(2):
        assert encode({"role": "user", "content": "secret words"}, lenient=lenient).tokens == 6
    [record] = caplog.records
    assert "count_words" in record.getMessage()
    assert "secret" not in caplog.text


def test_the_maximum_of_the_column_is_a_valid_count(settings, monkeypatch):
    settings.CHATMEMORY = {"TOKEN_COUNTER": f"{__name__}.count_words"}
    monkeypatch.setitem(globals(), "count_words", lambda text: 2**31 - 1)
    assert encode({"role": "user", "content": "x"}).tokens == 2**31 - 1


@pytest.mark.parametrize(
    "calls",
    [
        [{"id": "c", "type": "function", "function": {"name": "pay", "arguments": "{}"}}],
        [{"name": "pay", "args": "{}"}],
        [{"name": None, "args": {}}],
        ["pay"],
        "pay",
        {"name": 5},
    ],
)
def test_a_tool_call_in_another_format_is_refused_or_kept_if_lenient(calls):
    message = {"role": "assistant", "content": "", "tool_calls": calls}
    with pytest.raises(BadInput) as caught:
        encode(message, field="messages[2]")
    assert caught.value.field == "messages[2].tool_calls[0]"
    row = encode(message, lenient=True)
    assert decode(row.role, row.text, row.body)["tool_calls"] == calls
