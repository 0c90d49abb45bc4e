-- Append: stores a batch of two messages when the host's code or a client sends them.

UPDATE "chatmemory_session"
SET last_seq = last_seq + %(row_count)s, tokens = tokens + %(add_tokens)s,
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
    %(13)s, %(14)s), (%(15)s, %(16)s, %(17)s, %(18)s, %(19)s, %(20)s, %(21)s, %(22)s, %(23)s,
    %(24)s, %(25)s, %(26)s, %(27)s, %(28)s);
-- %(4)s is 'user'
-- %(10)s is 'complete'
-- %(18)s is 'assistant'
-- %(24)s is 'complete'

COMMIT;
