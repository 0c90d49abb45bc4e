"""Strict JSON, and plain messages to and from columns. Pure: no database, no network."""

from __future__ import annotations

from chatmemory.codec.calls import (
    CALLS,
    UNKNOWN_OUTCOME,
    Asks,
    answered_call,
    call_ids,
    calls_of,
    keep_named_calls,
    take_results,
    unknown_outcome,
)
from chatmemory.codec.checks import (
    HIDDEN,
    NOT_IN_KEYS,
    check_client_id,
    check_key,
    check_storable,
    check_text,
    is_blank,
    is_new_key,
    key_of_address,
    label,
    new_client_id,
    storable,
    turn_of_address,
    unknown_field,
)
from chatmemory.codec.cleaning import REASONING_TYPES, check_value, cleaned, text_of
from chatmemory.codec.json import MAX_SAFE_INTEGER, dump_json, parse_json
from chatmemory.codec.messages import MAX_CALLS, ROLES, Row, count_tokens, decode, encode, redacted
from chatmemory.codec.steps import MAX_STEP_CHARS, Steps, steps_of
from chatmemory.codec.usage import parse_usage, token_count

__all__ = [
    "CALLS",
    "HIDDEN",
    "MAX_CALLS",
    "MAX_SAFE_INTEGER",
    "MAX_STEP_CHARS",
    "NOT_IN_KEYS",
    "REASONING_TYPES",
    "ROLES",
    "UNKNOWN_OUTCOME",
    "Asks",
    "Row",
    "Steps",
    "answered_call",
    "call_ids",
    "calls_of",
    "check_client_id",
    "check_key",
    "check_storable",
    "check_text",
    "check_value",
    "cleaned",
    "count_tokens",
    "decode",
    "dump_json",
    "encode",
    "is_blank",
    "is_new_key",
    "keep_named_calls",
    "key_of_address",
    "label",
    "new_client_id",
    "parse_json",
    "parse_usage",
    "redacted",
    "steps_of",
    "storable",
    "take_results",
    "text_of",
    "token_count",
    "turn_of_address",
    "unknown_field",
    "unknown_outcome",
]
