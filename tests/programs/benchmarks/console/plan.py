"""The plan of all rows, as a temporary table of sessions and a temporary view of their messages.

All numbers are derived from the number of the session and the seq of the message by hashes, so
that messages, turns, feedback and counters are consistent without reading one another.
"""

from __future__ import annotations

from datetime import datetime

from django.contrib.auth import get_user_model
from django.db import connection

from chatmemory.models import Session
from tests.programs.benchmarks.console.sizes import CYCLE, Size

DAYS = 90
"""The sessions were created in this number of days; a hundredth of them is older."""
STATES = {
    "is_purged": (101, 104),
    "is_held": (105, 108),
    "is_archived": (109, 113),
    "is_expired": (114, 117),
    "is_trimmed": (118, 121),
    "is_vacuumed": (122, 123),
    "is_cleared": (124, 124),
    "expires_soon": (125, 127),
    "is_pinned": (128, 130),
}
"""The numbers of the sessions in each state, modulo 200. The largest and the running sessions have
lower or higher ones."""


def chance(number: str, seed: int, below: int | str) -> str:
    """Return SQL of a pseudorandom number from 0, derived from `number`."""
    return f"mod(hashint8extended({number}, {seed}) & 1073741823, {below})"


def client_id(number: str, seq: str) -> str:
    """Return SQL of a client_id as `codec.new_client_id` forms it."""
    digest = f"decode(md5({number} || '.' || {seq}), 'hex')"
    return f"left(translate(encode({digest}, 'base64'), '+/', '-_'), 22)"


_STATES = ", ".join(
    f"slot BETWEEN {low} AND {high} AS {name}" for name, (low, high) in STATES.items()
)

_PLAN = f"""\
CREATE TEMPORARY TABLE console_plan AS
WITH numbered AS (
    SELECT
        number,
        mod(number, 200) AS slot,
        nextval(pg_get_serial_sequence(%(table)s, 'id')) AS pk,
        number > %(sessions)s - %(running)s AS is_running,
        {chance("number", 1, 1_000_000)} / 1e6::float8 AS luck,
        CASE
            WHEN number = 1 THEN %(giant)s
            WHEN number <= 1 + %(large_count)s THEN %(large)s
            ELSE 2 * {chance("number", 2, "%(typical)s + 1")}
        END AS size,
        %(now)s::timestamptz - interval '{DAYS} days' * (%(sessions)s + 1 - number) / %(sessions)s
            - CASE
                WHEN number BETWEEN 1 + %(large_count)s AND %(sessions)s / 100
                THEN interval '300 days' ELSE interval '0'
            END AS created_at
    FROM generate_series(1, %(sessions)s::bigint) AS number
), stated AS (
    SELECT *, {_STATES}, (size + is_running::int)::bigint AS last_seq FROM numbered
), paced AS (
    SELECT
        *,
        CASE
            WHEN number <= 1 + %(large_count)s OR mod(number, 10) = 0
            THEN (%(now)s::timestamptz - created_at) * 0.98 / (last_seq + 1)
            ELSE least(interval '30 s', (%(now)s::timestamptz - created_at) / (last_seq + 2))
        END AS pace,
        CASE
            WHEN is_trimmed OR is_vacuumed
            THEN least({CYCLE}, last_seq - mod(last_seq, {CYCLE})) + 1
            WHEN is_purged OR is_cleared THEN last_seq + 1
            ELSE 1
        END AS first_seq,
        CASE
            WHEN mod(number, 10) = 3
            THEN 'visitor:' || encode(sha256(('v' || number / 40)::bytea), 'hex')
            WHEN mod(number, 50) = 7 THEN 'server'
        END AS other,
        CASE
            WHEN mod(number, 100) = 50 THEN 1
            ELSE 1 + floor(power({chance("number", 3, 1_000_000)} / 1e6::float8, 2) * %(users)s)
        END::bigint AS user_number
    FROM stated
)
SELECT
    paced.*,
    person.pk AS owner_pk,
    coalesce(other, 'user:' || person.pk) AS person,
    CASE WHEN is_vacuumed THEN first_seq ELSE 1 END AS stored_from,
    md5('session ' || paced.number)::uuid::text AS key,
    hashint8extended(paced.number, 4) & 1099511627775 AS epoch,
    NULL::timestamptz AS last_message_at,
    NULL::timestamptz AS state_at,
    0::bigint AS tokens,
    0::bigint AS superseded_to
FROM paced
LEFT JOIN console_user AS person ON person.number = paced.user_number AND other IS NULL
ORDER BY paced.number"""  # noqa: S608  # constants

_ROWS = f"""\
CREATE TEMPORARY VIEW console_row AS
WITH placed AS (
    SELECT
        number, pk, seq, epoch, is_running, last_seq, stored_from, created_at AS begun_at, pace,
        person,
        number * 1048576 + seq AS row_number,
        mod(seq - 1, {CYCLE}) AS place,
        seq - mod(seq - 1, {CYCLE}) + {CYCLE - 1} <= last_seq AND mod(seq - 1, {CYCLE}) >= 18
            AS has_tool
    FROM console_plan, generate_series(1, last_seq) AS seq
), turned AS (
    SELECT
        *,
        CASE WHEN has_tool THEN seq - place + 18 ELSE seq - mod(seq - 1, 2) END AS turn,
        CASE WHEN has_tool THEN 4 ELSE 2 END AS length
    FROM placed
), drawn AS (
    SELECT
        *,
        seq - turn AS step,
        seq = turn + length - 1 AS is_last,
        is_running AND turn = last_seq AS is_live,
        number * 1048576 + turn AS turn_number
    FROM turned
), dated AS (
    SELECT
        *,
        20 + {chance("row_number", 5, 180)} AS tokens,
        {chance("turn_number", 6, 100)} AS fate,
        begun_at + pace * turn AS turn_at,
        least(
            interval '1 ms' * (700 + power({chance("turn_number", 7, 1_000)} / 200.0::float8, 6)),
            pace * length * 0.9
        ) AS duration
    FROM drawn
)
SELECT
    *,
    CASE WHEN fate < 2 THEN 'failed' WHEN fate < 5 THEN 'interrupted' ELSE 'complete' END AS status,
    CASE WHEN fate < 2 THEN (%(errors)s::text[])[1 + {chance("turn_number", 8, 5)}] ELSE '' END
        AS error,
    (%(models)s::text[])[1 + {chance("number", 9, 4)}] AS model,
    turn_at + duration * step / (length - 1) AS created_at,
    CASE
        WHEN is_last AND fate >= 5 AND {chance("turn_number", 10, 40)} = 0
        THEN CASE WHEN {chance("turn_number", 11, 4)} = 0 THEN -1 ELSE 1 END
    END AS feedback,
    CASE WHEN place = 10 AND seq = turn AND mod(number, 4) = 0 AND number > 200 THEN turn - 2 END
        AS replaces_from
FROM dated"""  # noqa: S608  # constants

_COUNT = """\
UPDATE console_plan SET
    tokens = counted.tokens,
    last_message_at = counted.newest_at,
    superseded_to = counted.superseded_to
FROM (
    SELECT
        number,
        sum(tokens) AS tokens,
        max(created_at) FILTER (WHERE seq = last_seq) AS newest_at,
        coalesce(max(replaces_from) + 1, 0) AS superseded_to
    FROM console_row GROUP BY number
) AS counted
WHERE console_plan.number = counted.number"""

_STATE_TIMES = """\
UPDATE console_plan SET state_at = active_at + (%(now)s::timestamptz - active_at) * luck
FROM (SELECT number AS n, coalesce(last_message_at, created_at) AS active_at FROM console_plan) AS a
WHERE n = number"""

ERRORS = [
    "model_error",
    "model_timeout",
    "model_rate_limited",
    "model_unavailable",
    "context_too_long",
]
MODELS = ["model-large", "model-medium", "model-small", "model-local"]


def make_plan(size: Size, now: datetime) -> None:
    """Create the temporary table and view. Needs the users of `add_users`."""
    numbers = {
        name: getattr(size, name)
        for name in ("sessions", "running", "giant", "large", "large_count", "typical", "users")
    }
    with connection.cursor() as cursor:
        # Compiling these expressions takes seconds, for each statement.
        cursor.execute("SET jit = off")
        cursor.execute(_PLAN, {"table": Session._meta.db_table, "now": now, **numbers})
        cursor.execute(_ROWS, {"errors": ERRORS, "models": MODELS})
        cursor.execute("ANALYZE console_plan")
        cursor.execute(_COUNT)
        cursor.execute(_STATE_TIMES, {"now": now})


def number_users(prefix: str) -> None:
    """Number the users whose name has this prefix, in a temporary table."""
    users = get_user_model()
    pk = users._meta.pk.column
    with connection.cursor() as cursor:
        cursor.execute(
            f"CREATE TEMPORARY TABLE console_user AS"  # noqa: S608  # names only
            f" SELECT {pk} AS pk, row_number() OVER (ORDER BY {pk}) AS number"
            f" FROM {users._meta.db_table} WHERE {users.USERNAME_FIELD} LIKE %s",
            [f"{prefix}%"],
        )


def drop_plan() -> None:
    """Drop the temporary table and view."""
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE console_plan, console_user CASCADE")
        cursor.execute("RESET jit")
