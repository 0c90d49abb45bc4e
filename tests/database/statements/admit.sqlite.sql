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
            AND "chatmemory_turn"."lease_until" >= (STRFTIME('%Y-%m-%d %H:%M:%f','NOW'))
            AND "chatmemory_turn"."status" = 'running') OR (("chatmemory_session"."running" IS NULL
            OR "chatmemory_session"."running" = ("chatmemory_turn"."client_id"))
            AND "chatmemory_turn"."status" = 'waiting')))
LIMIT 3;
-- %(2)s is 1
-- %(3)s is 1

UPDATE "chatmemory_session"
SET last_seq = last_seq + 1, tokens = tokens + %(add_tokens)s, fence = fence + 1,
    revision = revision + 1, running = %(set_running)s,
    last_message_at = STRFTIME('%Y-%m-%d %H:%M:%f','NOW'), last_active_day = MAX(last_active_day,
    DATE('NOW'))
WHERE "scope" = %(is_scope)s AND "key" = %(is_key)s AND "removed_at" IS NULL
    AND "archived_at" IS NULL AND "running" IS NULL AND "waiting" = 0 AND (("running" IS NOT NULL
    OR "waiting" > %(unexpired_1)s OR "held_at" IS NOT NULL
    OR (("expires_at" > (STRFTIME('%Y-%m-%d %H:%M:%f','NOW')) OR "expires_at" IS NULL)
    AND ("ttl_seconds" IS NULL OR STRFTIME('%Y-%m-%d %H:%M:%f', COALESCE("last_message_at",
    "created_at"), "ttl_seconds" || ' seconds') > (STRFTIME('%Y-%m-%d %H:%M:%f','NOW'))))))
RETURNING id, last_seq, epoch, fence, waiting;

INSERT INTO "chatmemory_message" (session_id, seq, turn, role, text, body, client_id, batch, step,
    status, error, model, author, tokens)
VALUES (%(1)s, %(2)s, %(3)s, %(4)s, %(5)s, %(6)s, %(7)s, %(8)s, %(9)s, %(10)s, %(11)s, %(12)s,
    %(13)s, %(14)s);
-- %(4)s is 'user'
-- %(10)s is 'complete'

INSERT INTO "chatmemory_turn" ("session_id", "scope", "client_id", "status", "position", "asked",
    "user_seq", "replaces_from", "replaces_to", "epoch", "fence", "lease_owner", "lease_until",
    "started_at", "stop_requested_at", "step", "first_text_ms", "partial", "model", "usage",
    "error", "created_at", "ended_at")
VALUES (%(1)s, %(2)s, %(3)s, %(4)s, %(5)s, %(6)s, %(7)s, %(8)s, %(9)s, %(10)s, %(11)s, %(12)s,
    (django_format_dtdelta('+', STRFTIME('%Y-%m-%d %H:%M:%f','NOW'), %(13)s)), %(14)s, %(15)s,
    %(16)s, %(17)s, %(18)s, %(19)s, %(20)s, %(21)s, STRFTIME('%Y-%m-%d %H:%M:%f','NOW'), %(22)s)
RETURNING "chatmemory_turn"."id", "chatmemory_turn"."scope", "chatmemory_turn"."position",
    "chatmemory_turn"."fence", "chatmemory_turn"."step", "chatmemory_turn"."created_at";
-- %(4)s is 'running'

COMMIT;
