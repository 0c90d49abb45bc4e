"""JSON, indented for people."""

from __future__ import annotations

import pytest

from chatmemory.rendering.json import formatted, formatted_args, indented


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


def test_the_indentation_of_deep_json_is_limited():
    assert len(indented("[" * 30_000)) < 50 * 30_000
    assert indented("]") == "\n]"
