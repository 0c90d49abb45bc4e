"""Parsing and serialization of frames."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any

import jsonschema
import pytest
from django.test import override_settings
from hypothesis import given
from hypothesis import strategies as st

from chatmemory import codec, models, protocol
from chatmemory.errors import (
    BadInput,
    Busy,
    ChatMemoryError,
    Conflict,
    RateLimited,
    RoleForbidden,
)
from chatmemory.models import MAX_FEEDBACK_CHARS
from chatmemory.models.values import HEAD_COLUMNS, head_of
from chatmemory.protocol import (
    Cursor,
    Feedback,
    Fetch,
    Hello,
    Pong,
    Rename,
    Send,
    Stop,
    client_frames,
)
from chatmemory.protocol.shapes import Rule, Shape
from chatmemory.services import session_fields
from chatmemory.services.turns import admission
from tests import frames

NO_TEXTS: list[Any] = [None, 5, True, [], {}]
NO_NUMBERS: list[Any] = ["1", 1.0, True, [], {}]
ODD_IDS: list[Any] = [None, "", True, 1.5, [], "x" * 65, "\ud800", "\0", "\n"]
SEND = {"type": "send", "id": 1, "client_id": "c1", "text": "hi"}
RATE = {"type": "feedback", "id": 1, "turn": "c1", "value": 1}
FETCH = {"type": "fetch", "id": 1, "before_seq": 9}
CONTENT_FAULT = "send.content.0: 'text' is a required property"
"""The service checks the text of a block."""


@pytest.mark.parametrize(
    ("frame", "parsed"),
    [
        ({"type": "hello", "v": 1}, Hello(v=1)),
        ({"type": "hello", "v": 2, "cursor": None}, Hello(v=2)),
        (
            {"type": "hello", "v": 1, "cursor": "c", "create": True},
            Hello(v=1, cursor="c", create=True),
        ),
        (SEND, Send(id=1, client_id="c1", content="hi")),
        (SEND | {"id": "a", "epoch": 7}, Send(id="a", client_id="c1", content="hi", epoch=7)),
        (SEND | {"epoch": None}, Send(id=1, client_id="c1", content="hi")),
        (
            {"type": "send", "id": 1, "client_id": "c1", "content": [{"type": "text"}]},
            Send(id=1, client_id="c1", content=[{"type": "text"}]),
        ),
        ({"type": "stop", "id": 1, "turn": "c1"}, Stop(id=1, turn="c1")),
        ({"type": "rename", "id": 1, "title": ""}, Rename(id=1, title="")),
        (RATE, Feedback(id=1, turn="c1", value=1)),
        (RATE | {"value": None}, Feedback(id=1, turn="c1", value=None)),
        (RATE | {"reason": "Good."}, Feedback(id=1, turn="c1", value=1, reason="Good.")),
        (FETCH, Fetch(id=1, before_seq=9, limit=50)),
        (FETCH | {"limit": 10**9}, Fetch(id=1, before_seq=9, limit=100)),
        (FETCH | {"limit": 0}, Fetch(id=1, before_seq=9, limit=1)),
        ({"type": "pong", "n": 3}, Pong(n=3)),
    ],
)
def test_a_valid_frame_is_parsed(frame, parsed):
    assert protocol.parse(frame) == parsed
    if parsed.__class__ is not Hello or parsed.v == protocol.VERSION:
        assert frames.fault_of("client", frame) in ("", CONTENT_FAULT)


@pytest.mark.parametrize(
    ("frame", "code", "field"),
    [
        *[(root, "bad_shape", "") for root in [*NO_TEXTS, "x"] if root != {}],
        *[({"type": kind}, "bad_field", "type") for kind in NO_TEXTS],
        ({}, "bad_field", "type"),
        *[
            ({"type": kind}, "unknown_type", "type")
            for kind in (
                "close",
                "websocket.disconnect",
                "_x",
                "chat.message",
                "",
                "Send",
                "welcome",
            )
        ],
        ({"type": "hello"}, "bad_field", "v"),
        *[({"type": "hello", "v": v}, "bad_field", "v") for v in ("1", 1.0, True, -1, None)],
        ({"type": "hello", "v": 1, "cursor": 5}, "bad_field", "cursor"),
        ({"type": "hello", "v": 1, "create": 1}, "bad_field", "create"),
        *[(SEND | {"id": value}, "bad_field", "id") for value in ODD_IDS],
        *[(SEND | {"text": value}, "bad_field", "text") for value in NO_TEXTS],
        ({"type": "send", "id": 1, "client_id": "c1"}, "bad_field", "text"),
        *[
            (SEND | {"client_id": value}, "bad_field", "client_id")
            for value in (None, "", "x" * 65, "a b", "ä", "a/b", "a@b", 5, "a\n", "\ud800")
        ],
        ({"type": "send", "id": 1, "text": "hi"}, "bad_field", "client_id"),
        (SEND | {"epoch": "7"}, "bad_field", "epoch"),
        *[
            (SEND | {name: value}, "bad_field", name)
            for name in ("replaces", "expect_seq")
            for value in ("1", -1, 1.0, True)
        ],
        *[(SEND | {"if_busy": value}, "bad_field", "if_busy") for value in (1, True, {"a": 1})],
        *[
            ({"type": "rename", "id": 1, "title": title}, "bad_field", "title")
            for title in (None, 1, ["x"])
        ],
        (SEND | {"content": []}, "bad_field", "text"),
        *[
            (SEND | {name: 1}, "unknown_field", name)
            for name in (
                "seq",
                "status",
                "created_at",
                "user",
                "session.user",
                "position",
            )
        ],
        (SEND | {"\ud800": 1}, "unknown_field", r"\ud800"),
        ({"type": "pong", "n": 1, "more": 1}, "unknown_field", "more"),
        ({"type": "stop", "id": 1}, "bad_field", "turn"),
        ({"type": "stop", "id": 1, "turn": "a b"}, "bad_field", "turn"),
        ({"type": "feedback", "id": 1, "turn": "c1"}, "bad_field", "value"),
        ({"type": "feedback", "id": 1, "value": 1}, "bad_field", "turn"),
        *[(RATE | {"value": value}, "bad_field", "value") for value in NO_NUMBERS],
        *[(RATE | {"reason": value}, "bad_field", "reason") for value in NO_TEXTS],
        ({"type": "fetch", "id": 1}, "bad_field", "before_seq"),
        (FETCH | {"before_seq": -1}, "bad_field", "before_seq"),
        (FETCH | {"limit": "x"}, "bad_field", "limit"),
        (FETCH | {"limit": -1}, "bad_field", "limit"),
        ({"type": "pong", "n": "1"}, "bad_field", "n"),
    ],
)
def test_an_invalid_frame_is_rejected_with_code_and_field(frame, code, field):
    with pytest.raises(BadInput) as raised:
        protocol.parse(frame)
    assert (raised.value.code, raised.value.field) == (code, field)
    assert frames.fault_of("client", frame) or field == "id"  # JSON Schema has no "printable"


def test_a_misspelled_required_field_is_reported_as_missing():
    with pytest.raises(BadInput, match=r"^text is required\.$"):
        protocol.parse({"type": "send", "id": 1, "client_id": "c1", "txt": "hi"})


@pytest.mark.parametrize("role", ["system", "assistant", "developer", "tool", "user", None])
def test_a_frame_with_a_role_is_forbidden(role):
    with pytest.raises(RoleForbidden):
        protocol.parse(SEND | {"role": role})


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


def may_differ(parsed):
    """Whether the schema may reject the frame: the version and the content are checked later."""
    return isinstance(parsed, Send) or (isinstance(parsed, Hello) and parsed.v != 1)


kinds = st.sampled_from(["hello", "send", "stop", "fetch", "pong"])
names = st.sampled_from(["id", "v", "cursor", "create", "client_id", "text", "turn", "n", "role"])


@pytest.mark.long
@given(
    values
    | st.builds(
        lambda kind, fields: {"type": kind, **fields},
        kinds,
        st.dictionaries(names | st.text(), values, max_size=4),
    )
)
def test_any_value_is_parsed_or_rejected_with_an_answer_that_can_be_sent(frame):
    answer = ""
    try:
        parsed = protocol.parse(frame)
        assert not frames.fault_of("client", frame) or may_differ(parsed)
    except ChatMemoryError as error:
        answer = protocol.dump_error(error, id=protocol.id_of(frame))
    assert answer.encode() is not None


@given(st.text() | st.binary())
def test_any_text_is_parsed_or_rejected(data):
    message = ""
    try:
        codec.parse_json(data)
    except BadInput as error:
        message = str(error)
    assert len(message) < 300


@pytest.mark.parametrize(
    ("frame", "frame_id"),
    [
        ({"id": 5}, 5),
        ({"id": "é"}, "é"),
        ({"id": "x" * 64}, "x" * 64),
        ({"id": "x" * 65}, None),
        ({"id": "\udfff"}, None),
        ({"id": False}, None),
        ({"id": {}}, None),
        ({}, None),
        ([1], None),
        (None, None),
    ],
)
def test_an_answer_has_the_id_of_its_frame_if_it_is_valid(frame, frame_id):
    assert protocol.id_of(frame) == frame_id


@pytest.mark.parametrize(
    ("error", "fields"),
    [
        (Conflict(), {"code": "conflict", "retry": False}),
        (BadInput("no", field="text"), {"code": "bad_field", "field": "text", "message": "no"}),
        (BadInput("no", code="too_large", limit=5), {"code": "too_large", "limit": 5}),
        (Busy(turn="t"), {"code": "busy", "retry": True, "turn": "t"}),
        (RateLimited(retry_after=1.5), {"code": "rate_limited", "retry_after_ms": 1500}),
        (ChatMemoryError(), {"code": "internal", "message": "An internal error occurred."}),
    ],
)
def test_an_error_has_the_fields_of_its_class(error, fields):
    frame = json.loads(protocol.dump_error(error, id=3))
    assert frame["type"] == "error"
    assert frame["id"] == 3
    assert fields.items() <= frame.items()


def test_an_error_without_a_frame_has_no_id_and_can_have_a_ref():
    frame = json.loads(protocol.dump_error(ChatMemoryError(), ref="abc"))
    assert "id" not in frame
    assert frame["ref"] == "abc"


def test_an_unknown_name_is_truncated_and_escaped():
    with pytest.raises(BadInput) as raised:
        protocol.parse({"type": "pong", "n": 1, "\n" * 200: 1})
    assert raised.value.field == "\\n" * 40


@pytest.mark.parametrize("char", ["a", "é", "🦆", "\x01"])
def test_a_large_message_is_truncated_and_marked(char):
    fields = {"seq": 1, "text": char * 1_000_000, "content": [{}], "cut": False}
    frame = protocol.dump_message(fields)
    assert len(frame.encode()) <= protocol.MAX_FRAME_OUT
    shown = json.loads(frame)
    assert (shown["cut"], shown["content"]) == (True, None)
    assert fields["text"].startswith(shown["text"])
    assert len(shown["text"]) >= 32_000


@override_settings(CHATMEMORY={})
def test_a_message_of_the_maximum_length_is_not_truncated():
    fields = {"seq": 1, "text": "🦆" * 32_000, "content": None, "cut": False}
    assert json.loads(protocol.dump_message(fields)) == {"type": "message", **fields}


def test_a_message_that_just_fits_a_frame_is_not_truncated():
    fields = {"seq": 1, "text": "", "content": None, "cut": False}
    fields["text"] = "a" * (protocol.MAX_FRAME_OUT - len(protocol.dump_message(fields)))
    assert len(protocol.dump_message(fields)) == protocol.MAX_FRAME_OUT
    fields["text"] += "a"
    assert json.loads(protocol.dump_message(fields))["cut"]


def test_a_cursor_survives_a_round_trip():
    for cursor in (Cursor(1, 2**41, 2**53, 4, 5, "0123456789abcdef"), Cursor(1, 2, 0, 0, 1)):
        assert Cursor.parse(str(cursor)) == cursor


@pytest.mark.parametrize(
    "text", ["", "garbage", "1.2.3.4.", "1.2.3.4.5", "1.2.3.4.5.6.", "1.2.-3.4.5.", "1.2.³.4.5.",
             "1.2.3. 4.5.", "1.2.٣.4.5.", "1" * 200, f"1.2.3.4.{'9' * 5_000}.",
             f"1.2.{10**30}.4.5.",
             f"1.2.{2**53 + 1}.4.5.", "\ud800.2.3.4.5.", "1.2.3.4.5.f", f"1.2.3.4.5.{'g' * 16}",
             f"1.2.3.4.5.{'0' * 17}", f"1.2.3.4.5.{'٣' * 16}", "1.2.3.4.5.\n"]
)  # fmt: skip
def test_an_invalid_cursor_is_none(text):
    assert Cursor.parse(text) is None


def test_the_session_frame_has_the_fields_of_a_head_and_of_the_feed():
    schema = frames.SCHEMA["$defs"]["session"]
    head = head_of(dict.fromkeys(HEAD_COLUMNS.values()))
    assert {*head.public(), "superseded", "waiting", "live"} == {*schema["properties"]} - {"type"}
    assert {*head.public()} <= {*schema["required"]}


def test_the_schema_has_the_bounds_that_services_check():
    assert protocol.BUSY_POLICIES == admission.BUSY_POLICIES
    assert protocol.MAX_TITLE_CHARS == session_fields.MAX_TITLE_CHARS
    assert client_frames.MAX_REASON_CHARS == MAX_FEEDBACK_CHARS
    assert [*client_frames.FEEDBACK] == models.Feedback.Value.values


@pytest.mark.parametrize(("frame", "field"), [("feedback", "value"), ("message", "feedback")])
def test_the_schema_of_a_nullable_choice_accepts_null_and_the_choices_alone(frame, field):
    schema = jsonschema.Draft202012Validator(frames.SCHEMA["$defs"][frame]["properties"][field])
    values: list[Any] = [None, 1, -1, 0, True, "1"]
    assert [value for value in values if schema.is_valid(value)] == [None, 1, -1]


def test_a_field_of_the_parser_needs_a_rule_with_a_check():
    @dataclass
    class Odd:
        size: float

    @dataclass
    class Unchecked:
        seq: Annotated[int, Rule(schema={})]

    with pytest.raises(TypeError, match=r"size needs a Rule\.$"):
        Shape(Odd)
    with pytest.raises(TypeError, match=r"seq needs a check\.$"):
        Shape(Unchecked)
