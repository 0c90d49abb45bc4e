"""Errors: one class for each code, with a default text for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from chatmemory import errors
from chatmemory.errors import BadInput, ChatMemoryError, NotFound, Refused


def _classes(root: type[ChatMemoryError] = ChatMemoryError) -> Iterator[type[ChatMemoryError]]:
    if root.__module__ == errors.__name__:
        yield root
        for subclass in root.__subclasses__():
            yield from _classes(subclass)


def test_each_code_has_one_class():
    codes = Counter(error.code for error in _classes())
    assert len(codes) > 15
    assert [code for code, count in codes.items() if count > 1] == []


@pytest.mark.parametrize("error", list(_classes()), ids=lambda error: error.code)
def test_the_default_text_is_the_first_line_of_the_docstring(error):
    text = str(error())
    assert text.endswith(".")
    assert error.__doc__.startswith(text)
    assert "\n" not in text


def test_a_given_text_replaces_the_default():
    assert str(NotFound("No session with this key.")) == "No session with this key."
    assert str(BadInput("Too long.", code="too_large")) == "Too long."


def test_a_sentence_of_the_host_can_be_sent():
    assert str(Refused("Half \ud83d of a smiley.")) == "Half ? of a smiley."
