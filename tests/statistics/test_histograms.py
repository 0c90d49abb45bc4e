"""Histograms: bounded error, and sums that equal the histogram of all times."""

from __future__ import annotations

import math
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from chatmemory.statistics.histograms import (
    EDGES,
    MAX_ERROR,
    added,
    bucket_of,
    quantile,
)

TIMES = st.lists(st.integers(0, EDGES[-1] - 1), min_size=1, max_size=50)


def histogram(times):
    return dict(Counter(map(bucket_of, times)))


@given(TIMES, st.sampled_from([0.5, 0.95, 1.0]))
def test_a_quantile_is_within_the_stated_error(times, share):
    exact = sorted(times)[max(1, math.ceil(share * len(times))) - 1]
    found = quantile(histogram(times), share)
    assert abs(found - exact) <= max(1, exact * MAX_ERROR + 0.5)


@given(TIMES, TIMES)
def test_a_sum_is_the_histogram_of_all_times(some, others):
    assert added(histogram(some), histogram(others)) == histogram(some + others)


def test_the_edges_are_those_of_stored_rows():
    """Changing one would misread what is stored."""
    assert EDGES[:12] == (1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 13, 16)
    assert (EDGES[39], EDGES[59], EDGES[-1]) == (2048, 65536, 7223245206)
    assert [bucket_of(ms) for ms in (0, 0.9, 1, 9.9, 10, 1000)] == ["0", "0", "1", "8", "10", "861"]


def test_no_time_has_no_quantile():
    assert quantile({}, 0.5) is None
    assert quantile({"0": 3}, 0.5) == 0
