"""The pauses before a lost connection is opened again."""

from __future__ import annotations

FIRST_RETRY_SECONDS = 0.5
MAX_RETRY_SECONDS = 10.0


def max_pause(failures: int) -> float:
    """Return the upper limit of the pause, in seconds, after this number of failed connections."""
    # Without the bound on the exponent, a day of failures would overflow.
    return min(MAX_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2.0 ** min(failures, 30))
