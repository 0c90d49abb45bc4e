-- Renew: extends the leases of the runs of a process, here two, every few seconds.

BEGIN;

SET STATEMENT innodb_lock_wait_timeout=2, lock_wait_timeout=2 FOR
SELECT `chatmemory_turn`.`id` AS `pk`
FROM `chatmemory_turn`
WHERE (((`chatmemory_turn`.`client_id` = %(1)s AND `chatmemory_turn`.`epoch` = %(2)s
    AND `chatmemory_turn`.`fence` = %(3)s AND `chatmemory_turn`.`session_id` = %(4)s)
    OR (`chatmemory_turn`.`client_id` = %(5)s AND `chatmemory_turn`.`epoch` = %(6)s
    AND `chatmemory_turn`.`fence` = %(7)s AND `chatmemory_turn`.`session_id` = %(8)s))
    AND `chatmemory_turn`.`status` = %(9)s AND `chatmemory_turn`.`lease_owner` = %(10)s
    AND `chatmemory_turn`.`started_at` IS NOT NULL)
FOR UPDATE SKIP LOCKED;
-- %(9)s is 'running'

SET STATEMENT innodb_lock_wait_timeout=2, lock_wait_timeout=2 FOR
UPDATE `chatmemory_turn`
SET `lease_owner` = %(1)s, `lease_until` = (UTC_TIMESTAMP(6) + INTERVAL %(2)s MICROSECOND)
WHERE (((`chatmemory_turn`.`client_id` = %(3)s AND `chatmemory_turn`.`epoch` = %(4)s
    AND `chatmemory_turn`.`fence` = %(5)s AND `chatmemory_turn`.`session_id` = %(6)s)
    OR (`chatmemory_turn`.`client_id` = %(7)s AND `chatmemory_turn`.`epoch` = %(8)s
    AND `chatmemory_turn`.`fence` = %(9)s AND `chatmemory_turn`.`session_id` = %(10)s))
    AND `chatmemory_turn`.`status` = %(11)s AND `chatmemory_turn`.`lease_owner` = %(12)s
    AND `chatmemory_turn`.`started_at` IS NOT NULL AND `chatmemory_turn`.`id` IN (%(13)s, %(14)s));
-- %(11)s is 'running'

COMMIT;
