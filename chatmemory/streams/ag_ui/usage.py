"""The usage of a run as AG-UI counts it."""

from __future__ import annotations

from collections.abc import Mapping

from chatmemory.streams.replies import Data

MAX_COUNT = 2**53 - 1
"""The largest whole number that clients can read."""
NAMES = {
    "input_tokens": "inputTokens",
    "output_tokens": "outputTokens",
    "total_tokens": "totalTokens",
}
DETAILS = {
    "input_token_details": {
        "cache_read": "cachedInputTokens",
        "cache_creation": "cacheWriteInputTokens",
    },
    "output_token_details": {"reasoning": "reasoningTokens"},
}
"""Names of LangChain's `usage_metadata`, in which a usage is stored, and those of AG-UI.

Both count cached and reasoning tokens in the input and the output.
"""


def token_usage(model: str, usage: Mapping[str, object]) -> Data:
    """Return a stored usage as `TokenUsage` of AG-UI; empty if it has no valid count."""
    tokens = _counts(usage, NAMES)
    for name, names in DETAILS.items():
        details = usage.get(name)
        if isinstance(details, Mapping):
            tokens |= _counts(details, names)
    return {"model": model, **tokens} if tokens and model else tokens


def _counts(usage: Mapping[str, object], names: Mapping[str, str]) -> Data:
    found: Data = {}
    for ours, theirs in names.items():
        count = usage.get(ours)
        if isinstance(count, int) and not isinstance(count, bool) and 0 <= count <= MAX_COUNT:
            found[theirs] = count
    return found
