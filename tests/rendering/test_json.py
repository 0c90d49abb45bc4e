"""JSON, indented for people."""

from __future__ import annotations

import pytest

from chatmemory.rendering.json import formatted, formatted_args, indented
from chatmemory.rendering.text import MAX_MARKDOWN_CHARS


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('{"a":[1,{}],"b":"x: [y]"}', '{\n  "a": [\n    1,\n    {}\n  ],\n  "b": "x: [y]"\n}'),
        (" [ 1.50, 12345678901234567890 ]", "[\n  1.50,\n  12345678901234567890\n]"),
    ],
)
def test_json_is_indented_without_a_change_of_its_values(text, shown):
    assert formatted(text) == shown


@pytest.mark.parametrize("text", ["rain", "1", "[1] see below", '{"a": ', "", "[" * 100_000])
def test_another_text_remains_as_it_is(text):
    assert formatted(text) == text


def test_truncated_arguments_are_indented_too():
    assert (
        formatted_args('{"a":"say \\"hi\\", {you', is_cut=True) == '{\n  "a": "say \\"hi\\", {you'
    )
    for text in ("city: Lisboa", "[see](x\ny)", '{"a": '):
        assert formatted_args(text, is_cut=False) == text
    assert formatted_args("city: Lisboa", is_cut=True) == "city: Lisboa"


@pytest.mark.parametrize("depth", [20, 400])
def test_json_that_would_grow_too_much_remains_as_it_is(depth):
    text = "[" * depth + "1," * 5_000 + "1" + "]" * depth
    assert formatted(text) == indented(text) == text


def test_short_json_is_indented_however_deep_it_is():
    assert formatted("[" * 30 + "]" * 30).count("\n") == 58


def test_long_json_remains_as_it_is():
    text = f'["{"a" * MAX_MARKDOWN_CHARS}"]'
    assert formatted(text) == text


def test_the_indentation_of_deep_json_is_limited():
    assert max(map(len, indented("[" * 40).split("\n"))) == 41
    assert indented("]") == "\n]"
