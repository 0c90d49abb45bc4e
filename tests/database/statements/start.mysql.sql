-- Start: records the start of a run directly after its claim, unless its fence is lost.

BEGIN;

SET STATEMENT innodb_lock_wait_timeout=2, lock_wait_timeout=2 FOR
UPDATE `chatmemory_turn`
SET `started_at` = UTC_TIMESTAMP(6), `lease_owner` = %(owner)s,
    `lease_until` = (UTC_TIMESTAMP(6) + INTERVAL %(2)s MICROSECOND)
WHERE (`chatmemory_turn`.`client_id` = (%(client_id_0)s)
    AND `chatmemory_turn`.`epoch` = (%(epoch_0)s) AND `chatmemory_turn`.`fence` = (%(fence_0)s)
    AND `chatmemory_turn`.`session_id` = (%(session_id_0)s)
    AND `chatmemory_turn`.`status` = 'running' AND `chatmemory_turn`.`started_at` IS NULL);
-- %(2)s is 15000000

COMMIT;
