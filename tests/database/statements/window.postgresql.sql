-- Window: reads the newest rows for the model after `read`, while the fence is valid.

SELECT seq, role, text, body, tokens, redacted, quarantined,
    role = 'user' AND (turn IS NULL OR turn = seq),
    (SELECT superseded_to FROM "chatmemory_session" WHERE id = %(session_pk)s)
FROM "chatmemory_message"
WHERE session_id = %(session_pk)s
    AND seq >= (
        SELECT CASE WHEN first_seq > last_seq + 1 - %(limit)s THEN first_seq ELSE last_seq + 1 - %(limit)s END
        FROM "chatmemory_session"
        WHERE "id" = %(is_id)s AND "last_seq" = %(is_last_seq)s AND "epoch" = %(is_epoch)s
            AND "running" = %(is_running)s AND "fence" = %(is_fence)s
    )
ORDER BY seq DESC
LIMIT %(limit)s;
