-- Append: stores a batch of two messages when the host's code or a client sends them.

WITH lock_limit AS MATERIALIZED (SELECT set_config('lock_timeout', '2000ms', true)),
locked AS (
    UPDATE "chatmemory_session"
    SET last_seq = last_seq + %(row_count)s, tokens = tokens + %(add_tokens)s,
        last_message_at = CLOCK_TIMESTAMP(), last_active_day = GREATEST(last_active_day,
        (CLOCK_TIMESTAMP() AT TIME ZONE 'UTC')::date)
    FROM lock_limit
    WHERE "scope" = %(is_scope)s AND "key" = %(is_key)s AND "removed_at" IS NULL
        AND "archived_at" IS NULL AND "running" IS NULL AND "waiting" = 0
        AND (("running" IS NOT NULL OR "waiting" > %(unexpired_1)s OR "held_at" IS NOT NULL
        OR (("expires_at" > (CLOCK_TIMESTAMP()) OR "expires_at" IS NULL) AND ("ttl_seconds" IS NULL
        OR (COALESCE("last_message_at",
        "created_at") + INTERVAL '1 second' * "ttl_seconds") > (CLOCK_TIMESTAMP())))))
    RETURNING id, last_seq - %(row_count)s AS before, fence, last_seq, epoch, waiting
),
stored AS (
    INSERT INTO "chatmemory_message" (session_id, seq, turn, role, text, body, client_id, batch,
        step, status, error, model, author, tokens)
    SELECT locked.id, locked.before + given.number, NULL::bigint, given.role, given.text,
        given.body, given.client_id, given.batch, given.step, given.status, given.error,
        given.model, given.author, given.tokens
    FROM locked, (VALUES (1, 'user'::varchar(12), %(text_1)s::text, NULL::text,
        %(client_id_1)s::varchar(64), %(batch_1)s::integer, NULL::integer, 'complete'::varchar(12),
        ''::varchar(32), ''::varchar(100), NULL::varchar(100), %(tokens_1)s::integer), (2,
        'assistant', %(text_2)s, NULL, NULL, NULL, NULL, 'complete', '', '', NULL,
        %(tokens_2)s)) AS given (number, role, text, body, client_id, batch, step, status, error,
        model, author, tokens)
    RETURNING seq, created_at
)
SELECT locked.id, last_seq, epoch, fence, waiting, NULL
FROM locked;
