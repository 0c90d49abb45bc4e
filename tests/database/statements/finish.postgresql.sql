-- Finish: stores the last row of a run and ends its turn when the model has answered.

WITH lock_limit AS MATERIALIZED (SELECT set_config('lock_timeout', '2000ms', true)),
locked AS (
    UPDATE "chatmemory_session"
    SET last_seq = last_seq + 1, tokens = tokens + %(add_tokens)s, revision = revision + 1,
        running = NULL, last_message_at = CLOCK_TIMESTAMP(),
        last_active_day = GREATEST(last_active_day, (CLOCK_TIMESTAMP() AT TIME ZONE 'UTC')::date)
    FROM lock_limit
    WHERE "id" = %(is_id)s AND "epoch" = %(is_epoch)s AND "running" = %(is_running)s
        AND "fence" = %(is_fence)s AND "last_seq" = %(is_last_seq)s
    RETURNING id, last_seq - 1 AS before, fence, last_seq, epoch, waiting
),
written_turn AS (
    UPDATE "chatmemory_turn"
    SET "status" = 'complete', "scope" = '', "asked" = '', "partial" = '', "lease_owner" = '',
        "lease_until" = NULL, "ended_at" = CLOCK_TIMESTAMP(), "error" = '',
        "model" = %(turn_model)s, "usage" = '', "first_text_ms" = NULL
    FROM locked
    WHERE "chatmemory_turn".session_id = %(session_of_turn)s
        AND "chatmemory_turn".client_id = %(client_id_of_turn)s
    RETURNING "chatmemory_turn".id
),
stored AS (
    INSERT INTO "chatmemory_message" (session_id, seq, turn, role, text, body, client_id, batch,
        step, status, error, model, author, tokens)
    SELECT locked.id, locked.before + given.number, %(turn)s::bigint, given.role, given.text,
        given.body, given.client_id, given.batch, given.step, given.status, given.error,
        given.model, given.author, given.tokens
    FROM locked, (VALUES (1, 'assistant'::varchar(12), %(text_1)s::text, NULL::text,
        %(client_id_1)s::varchar(64), 1::integer, NULL::integer, 'complete'::varchar(12),
        ''::varchar(32), %(model_1)s::varchar(100), NULL::varchar(100),
        %(tokens_1)s::integer)) AS given (number, role, text, body, client_id, batch, step, status,
        error, model, author, tokens)
    RETURNING seq, created_at
)
SELECT locked.id, last_seq, epoch, fence, waiting, (SELECT id FROM written_turn)
FROM locked;
