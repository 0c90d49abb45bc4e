"""The columns of the rows, as SQL over the plan and its view of messages."""

from __future__ import annotations

from tests.programs.benchmarks.console import texts
from tests.programs.benchmarks.console.plan import chance, client_id

TAGS = ["billing", "bug", "vip", "feedback", "refund", "escalated", "test"]
OPERATOR_PREFIX = "console-operator-"

_NOW = "%(now)s::timestamptz"
_ACTIVE_AT = "coalesce(last_message_at, created_at)"


def _sentence(number: str, seed: int) -> str:
    return f"(%(sentences)s::text[])[1 + {chance(number, seed, len(texts.SENTENCES))}]"


def _numbered(template: str, number: str) -> str:
    return f"replace(%({template})s, %(number)s, ({number})::text)"


def _usage() -> str:
    tokens_in = "(200 + mod(turn * 30, 4000))"
    numbers = {
        texts.INPUT: tokens_in,
        texts.OUTPUT: "tokens",
        texts.INPUT + texts.OUTPUT: f"({tokens_in} + tokens)",
    }
    sql = "%(usage)s"
    for placeholder, number in numbers.items():
        sql = f"replace({sql}, '{placeholder}', {number}::text)"
    return sql


SESSION = {
    "id": "pk",
    "scope": "CASE WHEN is_purged THEN 'removed:' || pk ELSE person END",
    "removed_scope": "CASE WHEN is_purged THEN person ELSE '' END",
    "key": "key",
    "owner": "owner_pk",
    "title": f"CASE WHEN mod(number, 10) < 7 THEN rtrim({_sentence('number', 21)}, '.')"
    " || ' (' || number || ')' ELSE '' END",
    "instructions": "CASE WHEN mod(number, 50) = 9 THEN 'Answer briefly.' ELSE '' END",
    "metadata": "CASE WHEN mod(number, 25) = 9 THEN jsonb_build_object('channel', 'web')"
    " ELSE jsonb_build_object() END",
    "first_seq": "first_seq",
    "last_seq": "last_seq",
    "stored_from": "stored_from",
    "superseded_to": "superseded_to",
    "epoch": "epoch + (is_purged OR is_cleared)::int",
    # Rated rows have their seq as revision.
    "revision": "last_seq + 1",
    "rows_revision": "last_seq",
    "running": f"CASE WHEN is_running THEN {client_id('number', 'last_seq')} END",
    "waiting": "CASE WHEN is_running AND mod(number, 2) = 0 THEN 2 ELSE 0 END",
    "fence": "last_seq",
    "tokens": "tokens",
    "last_message_at": "last_message_at",
    "last_active_day": f"({_ACTIVE_AT} AT TIME ZONE 'UTC')::date",
    "expires_at": f"CASE WHEN is_expired THEN {_NOW} - interval '5 days' * luck"
    f" WHEN expires_soon THEN {_NOW} + interval '7 days' * luck END",
    "archived_at": "CASE WHEN is_archived THEN state_at END",
    "pinned_at": "CASE WHEN is_pinned THEN state_at END",
    "held_at": "CASE WHEN is_held THEN state_at END",
    "removed_at": "CASE WHEN is_purged THEN state_at END",
    "created_at": "created_at",
}

_IS_CALL, _IS_RESULT = "has_tool AND step = 1", "has_tool AND step = 2"
_REFERENCE = "' (' || number || '-' || seq || ')'"
_ANSWER = f"(%(answers)s::text[])[1 + {chance('row_number', 33, len(texts.ANSWERS))}]"

MESSAGE = {
    "session": "pk",
    "seq": "seq",
    "role": f"CASE WHEN step = 0 THEN 'user' WHEN {_IS_RESULT} THEN 'tool' ELSE 'assistant' END",
    "text": f"CASE WHEN step = 0 THEN {_sentence('row_number', 31)} || {_REFERENCE}"
    f" WHEN {_IS_CALL} THEN '' WHEN {_IS_RESULT} THEN {_numbered('result_text', 'seq')}"
    f" ELSE {_sentence('row_number', 31)} || ' ' || {_ANSWER} || ' '"
    f" || {_sentence('row_number', 32)} || {_REFERENCE} END",
    "body": f"CASE WHEN {_IS_CALL} THEN {_numbered('call', 'seq + 1')}"
    f" WHEN {_IS_RESULT} THEN {_numbered('result', 'seq')} END",
    "client_id": client_id("number", "seq"),
    "batch": "1",
    "turn": "turn",
    "step": f"CASE WHEN step = 0 OR {_IS_RESULT} THEN NULL WHEN step = 3 THEN 2 ELSE 1 END",
    "status": "CASE WHEN is_last THEN status ELSE 'complete' END",
    "error": "CASE WHEN is_last THEN error ELSE '' END",
    "model": "CASE WHEN is_last THEN model ELSE '' END",
    "tokens": "tokens",
    "revision": "CASE WHEN feedback IS NULL THEN 0 ELSE seq END",
    "feedback": "feedback",
    "created_at": "created_at",
}

TURN = {
    "session": "pk",
    "client_id": client_id("number", "turn"),
    "status": "CASE WHEN is_live THEN 'running' ELSE status END",
    "scope": "CASE WHEN is_live THEN person ELSE '' END",
    "user_seq": "turn",
    "replaces_from": "replaces_from",
    "replaces_to": "replaces_from + 1",
    "epoch": "epoch",
    "fence": "turn",
    "lease_owner": "CASE WHEN is_live THEN 'console' ELSE '' END",
    # So late that no runner ends the turn.
    "lease_until": f"CASE WHEN is_live THEN {_NOW} + interval '10 years' END",
    "started_at": "turn_at + interval '40 ms'",
    "step": "CASE WHEN has_tool THEN 2 ELSE 1 END",
    "first_text_ms": "CASE WHEN is_live OR status = 'failed' THEN NULL"
    " ELSE (100 + extract(epoch FROM duration) * 250)::int END",
    "partial": "CASE WHEN is_live THEN %(partial)s ELSE '' END",
    "model": "CASE WHEN is_live THEN '' ELSE model END",
    "usage": f"CASE WHEN NOT is_live AND status = 'complete' THEN {_usage()} ELSE '' END",
    "error": "CASE WHEN is_live THEN '' ELSE error END",
    "created_at": "turn_at",
    "ended_at": "CASE WHEN NOT is_live THEN turn_at + duration END",
}

WAITING_TURN = {
    "session": "pk",
    "client_id": client_id("number", "(last_seq + ahead)"),
    "status": "'waiting'",
    "scope": "person",
    "epoch": "epoch",
    "asked": _numbered("asked", "number"),
    "created_at": f"{_NOW} - interval '1 s' * (10 - ahead)",
}

CANCELLED_TURN = {
    "session": "pk",
    "client_id": client_id("number", "'cancelled'"),
    "status": "'cancelled'",
    "epoch": "epoch",
    "created_at": "last_message_at",
    "ended_at": "last_message_at + interval '4 s'",
}

FEEDBACK = {
    "session": "pk",
    "turn": client_id("number", "turn"),
    "user_seq": "turn",
    "value": "feedback",
    "reason": "CASE WHEN feedback < 0 THEN 'Not what I asked for ' || number ELSE '' END",
    "created_at": "created_at + interval '20 s'",
    "changed_at": "created_at + interval '20 s'",
}

TAG = {
    "session": "pk",
    "tag": f"(%(tags)s::text[])[1 + mod(number / 5 + which, {len(TAGS)})]",
    "created_at": "state_at",
}

JOB = {
    "action": "'tag'",
    "status": "'complete'",
    "total": "count(*)",
    "done": "count(*) - count(*) / 10",
    "skipped": "jsonb_build_object('unchanged', count(*) / 10)",
    "params": "jsonb_build_object('tag', %(tag)s::text)",
    "permissions": "'view_session tag_session'",
    "actor_kind": "'operator'",
    "actor_id": "'1'",
    "actor_label": f"'{OPERATOR_PREFIX}1'",
    "reason": "'Campaign'",
    "created_at": f"{_NOW} - interval '1 hour'",
    "started_at": f"{_NOW} - interval '1 hour'",
    "ended_at": _NOW,
}

JOB_ITEM = {
    "job": "%(job)s",
    "session_pk": "id",
    "epoch": "epoch",
    "entry_pk": "id",
    "outcome": "CASE WHEN mod(row_number() OVER (ORDER BY id), 10) = 0 THEN 'unchanged'"
    " ELSE 'done' END",
}

NOTE = {
    "session": "pk",
    "text": "'Called the customer about case ' || number",
    "actor_kind": "'operator'",
    "actor_id": "'1'",
    "actor_label": f"'{OPERATOR_PREFIX}1'",
    "created_at": "state_at",
}
