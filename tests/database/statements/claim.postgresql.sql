-- Claim: stores the message of the first waiting turn and claims it when no other turn runs.

SELECT "chatmemory_turn"."id" AS "pk", "chatmemory_turn"."scope" AS "scope"
FROM "chatmemory_turn"
INNER JOIN "chatmemory_session" ON ("chatmemory_turn"."session_id" = "chatmemory_session"."id")
WHERE ("chatmemory_turn"."session_id" = (%(session)s) AND ("chatmemory_session"."running" IS NULL
    OR "chatmemory_session"."running" = ("chatmemory_turn"."client_id"))
    AND "chatmemory_turn"."status" = 'waiting')
ORDER BY 2 ASC, 1 ASC
LIMIT 1;

SELECT "auth_user"."id", "auth_user"."password", "auth_user"."last_login",
    "auth_user"."is_superuser", "auth_user"."username", "auth_user"."first_name",
    "auth_user"."last_name", "auth_user"."email", "auth_user"."is_staff", "auth_user"."is_active",
    "auth_user"."date_joined"
FROM "auth_user"
WHERE "auth_user"."id" = %(1)s
ORDER BY "auth_user"."id" ASC
LIMIT 1;

SELECT DISTINCT "chatmemory_turn"."session_id" AS "session"
FROM "chatmemory_turn"
INNER JOIN "chatmemory_session" ON ("chatmemory_turn"."session_id" = "chatmemory_session"."id")
WHERE ("chatmemory_turn"."scope" = (%(scope)s) AND "chatmemory_turn"."status" IN ('waiting',
    'running') AND NOT EXISTS(SELECT %(2)s AS "a"
        FROM "chatmemory_message" U0
        WHERE (U0."seq" = ("chatmemory_session"."last_seq" + %(3)s)
            AND U0."session_id" = ("chatmemory_turn"."session_id"))
        LIMIT 1) AND (("chatmemory_turn"."client_id" = ("chatmemory_session"."running")
            AND "chatmemory_turn"."lease_until" >= (CLOCK_TIMESTAMP())
            AND "chatmemory_turn"."status" = 'running') OR (("chatmemory_session"."running" IS NULL
            OR "chatmemory_session"."running" = ("chatmemory_turn"."client_id"))
            AND "chatmemory_turn"."status" = 'waiting' AND "chatmemory_turn"."id" < (%(turn)s)))
            AND NOT ("chatmemory_turn"."session_id" = (%(session)s)))
LIMIT 3;
-- %(2)s is 1
-- %(3)s is 1

BEGIN;

SELECT set_config('lock_timeout', '2000ms', true);

SELECT "chatmemory_session"."id", "chatmemory_session"."scope", "chatmemory_session"."key",
    "chatmemory_session"."owner_id", "chatmemory_session"."title",
    "chatmemory_session"."instructions", "chatmemory_session"."metadata",
    "chatmemory_session"."first_seq", "chatmemory_session"."last_seq",
    "chatmemory_session"."stored_from", "chatmemory_session"."superseded_to",
    "chatmemory_session"."epoch", "chatmemory_session"."revision",
    "chatmemory_session"."rows_revision", "chatmemory_session"."running",
    "chatmemory_session"."waiting", "chatmemory_session"."fence", "chatmemory_session"."tokens",
    "chatmemory_session"."last_message_at", "chatmemory_session"."last_active_day",
    "chatmemory_session"."expires_at", "chatmemory_session"."ttl_seconds",
    "chatmemory_session"."archived_at", "chatmemory_session"."pinned_at",
    "chatmemory_session"."held_at", "chatmemory_session"."removed_at",
    "chatmemory_session"."removed_scope", "chatmemory_session"."origin",
    "chatmemory_session"."origin_row", "chatmemory_session"."created_at"
FROM "chatmemory_session"
WHERE "chatmemory_session"."id" = %(1)s
LIMIT 21
FOR NO KEY UPDATE;

SELECT "chatmemory_turn"."id", "chatmemory_turn"."session_id", "chatmemory_turn"."scope",
    "chatmemory_turn"."client_id", "chatmemory_turn"."status", "chatmemory_turn"."position",
    "chatmemory_turn"."asked", "chatmemory_turn"."user_seq", "chatmemory_turn"."replaces_from",
    "chatmemory_turn"."replaces_to", "chatmemory_turn"."epoch", "chatmemory_turn"."fence",
    "chatmemory_turn"."lease_owner", "chatmemory_turn"."lease_until",
    "chatmemory_turn"."started_at", "chatmemory_turn"."stop_requested_at", "chatmemory_turn"."step",
    "chatmemory_turn"."first_text_ms", "chatmemory_turn"."partial", "chatmemory_turn"."model",
    "chatmemory_turn"."usage", "chatmemory_turn"."error", "chatmemory_turn"."created_at",
    "chatmemory_turn"."ended_at"
FROM "chatmemory_turn"
WHERE ("chatmemory_turn"."session_id" = %(1)s AND "chatmemory_turn"."status" = %(2)s
    AND NOT ("chatmemory_turn"."asked"::text LIKE %(3)s))
ORDER BY "chatmemory_turn"."position" ASC, "chatmemory_turn"."id" ASC;
-- %(2)s is 'waiting'

SAVEPOINT savepoint;

WITH locked AS (
    UPDATE "chatmemory_session"
    SET last_seq = last_seq + 1, tokens = tokens + %(add_tokens)s, fence = fence + 1,
        revision = revision + 1, waiting = waiting + -1, running = %(set_running)s,
        last_message_at = CLOCK_TIMESTAMP(), last_active_day = GREATEST(last_active_day,
        (CLOCK_TIMESTAMP() AT TIME ZONE 'UTC')::date)
    WHERE "id" = %(is_id)s AND "running" IS NULL
    RETURNING id, last_seq - 1 AS before, fence, last_seq, epoch, waiting
),
stored AS (
    INSERT INTO "chatmemory_message" (session_id, seq, turn, role, text, body, client_id, batch,
        step, status, error, model, author, tokens)
    SELECT locked.id, locked.before + given.number, locked.before + 1, given.role, given.text,
        given.body, given.client_id, given.batch, given.step, given.status, given.error,
        given.model, given.author, given.tokens
    FROM locked, (VALUES (1, 'user'::varchar(12), %(text_1)s::text, NULL::text,
        %(client_id_1)s::varchar(64), 1::integer, NULL::integer, 'complete'::varchar(12),
        ''::varchar(32), ''::varchar(100), NULL::varchar(100),
        %(tokens_1)s::integer)) AS given (number, role, text, body, client_id, batch, step, status,
        error, model, author, tokens)
    RETURNING seq, created_at
)
SELECT locked.id, last_seq, epoch, fence, waiting, NULL
FROM locked;

RELEASE SAVEPOINT savepoint;

UPDATE "chatmemory_turn"
SET "status" = %(1)s, "asked" = %(2)s, "user_seq" = %(3)s, "epoch" = %(4)s, "fence" = %(5)s,
    "lease_owner" = %(6)s, "lease_until" = (CLOCK_TIMESTAMP() + %(7)s)
WHERE ("chatmemory_turn"."session_id" = %(8)s AND "chatmemory_turn"."id" = %(9)s);
-- %(1)s is 'running'

COMMIT;
