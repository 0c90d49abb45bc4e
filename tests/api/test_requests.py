"""Bodies and queries of REST."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from chatmemory import protocol
from chatmemory.api import requests
from chatmemory.errors import BadInput, ChatMemoryError

MESSAGE = {"client_id": "c1", "text": "hi"}
VALUES: list[object] = [None, True, -1, 0, 5, 1.5, "", "a b", "x" * 70, [], {}]
FIELDS = ("client_id", "text", "content", "epoch", "if_busy", "replaces", "expect_seq")


def result_of(parse, source):
    """The fields, without those of one transport, or the error."""
    try:
        fields = asdict(parse(source))
    except ChatMemoryError as error:
        return type(error), error.code, getattr(error, "field", ""), str(error)
    return {name: value for name, value in fields.items() if name not in ("id", "wait", "html")}


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_message_is_accepted_and_refused_as_on_a_socket(field, value):
    sent = {**MESSAGE, field: value}
    over_rest = result_of(lambda body: requests.read(requests.SEND_MESSAGE, body), sent)
    on_a_socket = result_of(protocol.parse, {"type": "send", "id": 1, **sent})
    assert over_rest == on_a_socket


@pytest.mark.parametrize("field", MESSAGE)
def test_a_missing_field_is_named(field):
    body = {name: value for name, value in MESSAGE.items() if name != field}
    with pytest.raises(BadInput, match=f"^{field} is required\\.$"):
        requests.read(requests.SEND_MESSAGE, body)


def test_a_misspelled_field_is_unknown_before_another_is_missing():
    with pytest.raises(BadInput) as raised:
        requests.read(requests.SEND_MESSAGE, {"client_id": "c1", "txt": "hi"})
    assert (raised.value.code, raised.value.field) == ("unknown_field", "txt")
