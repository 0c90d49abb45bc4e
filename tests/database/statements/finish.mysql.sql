-- Finish: stores the last row of a run and ends its turn when the model has answered.

BEGIN;

SET STATEMENT innodb_lock_wait_timeout=2, lock_wait_timeout=2 FOR
UPDATE `chatmemory_session`
SET last_seq = last_seq + 1, tokens = tokens + %(add_tokens)s, revision = revision + 1,
    running = NULL, last_message_at = UTC_TIMESTAMP(6), last_active_day = GREATEST(last_active_day,
    UTC_DATE())
WHERE `id` = %(is_id)s AND `epoch` = %(is_epoch)s AND `running` = %(is_running)s
    AND `fence` = %(is_fence)s AND `last_seq` = %(is_last_seq)s;

SET STATEMENT innodb_lock_wait_timeout=2, lock_wait_timeout=2 FOR
SELECT id, last_seq, epoch, fence, waiting
FROM `chatmemory_session`
WHERE `id` = %(is_id)s;

SET STATEMENT innodb_lock_wait_timeout=2, lock_wait_timeout=2 FOR
INSERT INTO `chatmemory_message` (session_id, seq, turn, role, text, body, client_id, batch, step,
    status, error, model, author, tokens)
VALUES (%(1)s, %(2)s, %(3)s, %(4)s, %(5)s, %(6)s, %(7)s, %(8)s, %(9)s, %(10)s, %(11)s, %(12)s,
    %(13)s, %(14)s);
-- %(4)s is 'assistant'
-- %(10)s is 'complete'

SET STATEMENT innodb_lock_wait_timeout=2, lock_wait_timeout=2 FOR
UPDATE `chatmemory_turn`
SET `status` = %(1)s, `scope` = %(2)s, `asked` = %(3)s, `partial` = %(4)s, `lease_owner` = %(5)s,
    `lease_until` = NULL, `ended_at` = UTC_TIMESTAMP(6), `error` = %(6)s, `model` = %(7)s,
    `usage` = %(8)s, `first_text_ms` = NULL
WHERE (`chatmemory_turn`.`client_id` = %(9)s AND `chatmemory_turn`.`session_id` = %(10)s);
-- %(1)s is 'complete'

COMMIT;
