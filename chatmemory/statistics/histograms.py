"""Histograms of times in buckets that grow by a fifth: small to store, and they can be added up.

The edges are fixed, since stored rows name them. A bucket from 812 to 965 ms is stored under "812".
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from itertools import accumulate
from typing import Final

PER_DOUBLING = 4
"""Buckets between a time and its double."""

MAX_ERROR = 2 ** (1 / (2 * PER_DOUBLING)) - 1
"""The highest relative error of `quantile`, before it is rounded: 9.1 %; of short times it is 1 ms.
"""

EDGES: Final = tuple(sorted({round(2 ** (n / PER_DOUBLING)) for n in range(33 * PER_DOUBLING)}))
"""The lowest milliseconds of each bucket; times below 1 ms have the bucket 0."""

Histogram = dict[str, int]


def bucket_of(milliseconds: float) -> str:
    """Return the bucket of a time: its lowest milliseconds, as text."""
    index = bisect_right(EDGES, milliseconds)
    return str(EDGES[index - 1]) if index else "0"


def added(*histograms: Mapping[str, int]) -> Histogram:
    """Return the sum of histograms."""
    total: Counter[str] = Counter()
    for histogram in histograms:
        total.update(histogram)
    return dict(total)


def quantile(histogram: Mapping[str, int], share: float) -> int | None:
    """Return the time in milliseconds that this share of times does not exceed; None without any.

    `share` is 0.5 for the median. The error is at most MAX_ERROR or 1 ms, before it is rounded.
    """
    lows = sorted(histogram, key=int)
    totals = list(accumulate(histogram[low] for low in lows))
    if not totals or not totals[-1]:
        return None
    rank = max(1, math.ceil(share * totals[-1]))
    low = next(low for low, total in zip(lows, totals, strict=True) if total >= rank)
    return _middle(int(low))


def _middle(low: int) -> int:
    """Return the geometric mean of the lowest and highest whole milliseconds of a bucket."""
    index = bisect_right(EDGES, low)
    high = EDGES[index] - 1 if 0 < index < len(EDGES) else low
    return round(math.sqrt(low * max(low, high)))
