-- Admit: stores a user's message with its turn, claimed for this process, when a person sends it to
-- an idle session.

SELECT DISTINCT `chatmemory_turn`.`session_id` AS `session`
FROM `chatmemory_turn`
INNER JOIN `chatmemory_session` ON (`chatmemory_turn`.`session_id` = `chatmemory_session`.`id`)
WHERE (`chatmemory_turn`.`scope` = (%(scope)s) AND `chatmemory_turn`.`status` IN ('waiting',
    'running') AND NOT EXISTS(SELECT %(2)s AS `a`
        FROM `chatmemory_message` U0
        WHERE (U0.`seq` = (`chatmemory_session`.`last_seq` + %(3)s)
            AND U0.`session_id` = (`chatmemory_turn`.`session_id`))
        LIMIT 1) AND ((`chatmemory_turn`.`client_id` = (`chatmemory_session`.`running`)
            AND `chatmemory_turn`.`lease_until` >= (UTC_TIMESTAMP(6))
            AND `chatmemory_turn`.`status` = 'running') OR ((`chatmemory_session`.`running` IS NULL
            OR `chatmemory_session`.`running` = (`chatmemory_turn`.`client_id`))
            AND `chatmemory_turn`.`status` = 'waiting')))
LIMIT 3;
-- %(2)s is 1
-- %(3)s is 1

BEGIN;

SET STATEMENT innodb_lock_wait_timeout=2, lock_wait_timeout=2 FOR
UPDATE `chatmemory_session`
SET last_seq = last_seq + 1, tokens = tokens + %(add_tokens)s, fence = fence + 1,
    revision = revision + 1, running = %(set_running)s, last_message_at = UTC_TIMESTAMP(6),
    last_active_day = GREATEST(last_active_day, UTC_DATE())
WHERE `scope` = %(is_scope)s AND `key` = %(is_key)s AND `removed_at` IS NULL
    AND `archived_at` IS NULL AND `running` IS NULL AND `waiting` = 0 AND ((`running` IS NOT NULL
    OR `waiting` > %(unexpired_1)s OR `held_at` IS NOT NULL OR ((`expires_at` > (UTC_TIMESTAMP(6))
    OR `expires_at` IS NULL) AND (`ttl_seconds` IS NULL OR DATE_ADD(COALESCE(`last_message_at`,
    `created_at`), INTERVAL `ttl_seconds` SECOND) > (UTC_TIMESTAMP(6))))));

SET STATEMENT innodb_lock_wait_timeout=2, lock_wait_timeout=2 FOR
SELECT id, last_seq, epoch, fence, waiting
FROM `chatmemory_session`
WHERE `scope` = %(is_scope)s AND `key` = %(is_key)s;

SET STATEMENT innodb_lock_wait_timeout=2, lock_wait_timeout=2 FOR
INSERT INTO `chatmemory_message` (session_id, seq, turn, role, text, body, client_id, batch, step,
    status, error, model, author, tokens)
VALUES (%(1)s, %(2)s, %(3)s, %(4)s, %(5)s, %(6)s, %(7)s, %(8)s, %(9)s, %(10)s, %(11)s, %(12)s,
    %(13)s, %(14)s);
-- %(4)s is 'user'
-- %(10)s is 'complete'

SET STATEMENT innodb_lock_wait_timeout=2, lock_wait_timeout=2 FOR
INSERT INTO `chatmemory_turn` (`session_id`, `scope`, `client_id`, `status`, `position`, `asked`,
    `user_seq`, `replaces_from`, `replaces_to`, `epoch`, `fence`, `lease_owner`, `lease_until`,
    `started_at`, `stop_requested_at`, `step`, `first_text_ms`, `partial`, `model`, `usage`,
    `error`, `created_at`, `ended_at`)
VALUES (%(1)s, %(2)s, %(3)s, %(4)s, DEFAULT, %(5)s, %(6)s, %(7)s, %(8)s, %(9)s, %(10)s, %(11)s,
    (UTC_TIMESTAMP(6) + INTERVAL %(12)s MICROSECOND), %(13)s, %(14)s, DEFAULT, %(15)s, %(16)s,
    %(17)s, %(18)s, %(19)s, DEFAULT, %(20)s)
RETURNING `chatmemory_turn`.`id`, `chatmemory_turn`.`scope`, `chatmemory_turn`.`position`,
    `chatmemory_turn`.`fence`, `chatmemory_turn`.`step`, `chatmemory_turn`.`created_at`;
-- %(4)s is 'running'

COMMIT;
