-- Admit: stores a user's message with its turn, claimed for this process, when a person sends it to
-- an idle session.

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
            AND "chatmemory_turn"."status" = 'waiting')))
LIMIT 3;
-- %(2)s is 1
-- %(3)s is 1

WITH lock_limit AS MATERIALIZED (SELECT set_config('lock_timeout', '2000ms', true)),
locked AS (
    UPDATE "chatmemory_session"
    SET last_seq = last_seq + 1, tokens = tokens + %(add_tokens)s, fence = fence + 1,
        revision = revision + 1, running = %(set_running)s, last_message_at = CLOCK_TIMESTAMP(),
        last_active_day = GREATEST(last_active_day, (CLOCK_TIMESTAMP() AT TIME ZONE 'UTC')::date)
    FROM lock_limit
    WHERE "scope" = %(is_scope)s AND "key" = %(is_key)s AND "removed_at" IS NULL
        AND "archived_at" IS NULL AND "running" IS NULL AND "waiting" = 0
        AND (("running" IS NOT NULL OR "waiting" > %(unexpired_1)s OR "held_at" IS NOT NULL
        OR (("expires_at" > (CLOCK_TIMESTAMP()) OR "expires_at" IS NULL) AND ("ttl_seconds" IS NULL
        OR (COALESCE("last_message_at",
        "created_at") + INTERVAL '1 second' * "ttl_seconds") > (CLOCK_TIMESTAMP())))))
    RETURNING id, last_seq - 1 AS before, fence, last_seq, epoch, waiting
),
written_turn AS (
    INSERT INTO "chatmemory_turn" ("session_id", "epoch", "fence", "user_seq", "client_id",
        "status", "asked", "replaces_from", "replaces_to", "lease_owner", "lease_until",
        "started_at", "stop_requested_at", "first_text_ms", "partial", "model", "usage", "error",
        "ended_at", "scope")
    SELECT locked.id, locked.epoch, locked.fence, locked.before + 1, %(turn_client_id)s,
        %(turn_status)s, '', NULL, NULL, %(turn_lease_owner)s,
        (CLOCK_TIMESTAMP() + %(turn_lease_until_1)s), NULL, NULL, NULL, '', '', '', '', NULL,
        %(turn_scope)s
    FROM locked
    RETURNING id
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
SELECT locked.id, last_seq, epoch, fence, waiting, (SELECT id FROM written_turn)
FROM locked;
