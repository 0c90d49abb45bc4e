"""The sum of two usages."""

from __future__ import annotations

import pytest

from chatmemory.codec.usage import sum_usage


@pytest.mark.parametrize(
    ("one", "other", "total"),
    [
        ({}, {"in": 1}, {"in": 1}),
        ({"in": 1}, {}, {"in": 1}),
        ({"in": 1, "out": 2}, {"in": 3}, {"in": 4, "out": 2}),
        ({"cost": 0.5}, {"cost": 1}, {"cost": 1.5}),
        (
            {"details": {"read": 1}},
            {"details": {"read": 2, "new": 3}},
            {"details": {"read": 3, "new": 3}},
        ),
        ({"tier": "a"}, {"tier": "b"}, {"tier": "b"}),
        ({"in": 1}, {"in": None}, {"in": 1}),
        ({"in": {"read": 1}}, {"in": 2}, {"in": 2}),
    ],
)
def test_numbers_are_added_and_other_values_replaced(one, other, total):
    assert sum_usage(one, other) == total
