-- Renew: extends the leases of the runs of a process, here two, every few seconds.

UPDATE "chatmemory_turn"
SET "lease_owner" = %(owner)s, "lease_until" = (CLOCK_TIMESTAMP() + %(2)s)
WHERE (("chatmemory_turn"."session_id" = (%(session_id_0)s)
    OR "chatmemory_turn"."session_id" = (%(session_id_1)s))
    AND "chatmemory_turn"."id" IN (SELECT U0."id" AS "pk"
        FROM "chatmemory_turn" U0
        WHERE (((U0."client_id" = (%(client_id_0)s) AND U0."epoch" = (%(epoch_0)s)
            AND U0."fence" = (%(fence_0)s) AND U0."session_id" = (%(session_id_0)s))
            OR (U0."client_id" = (%(client_id_1)s) AND U0."epoch" = (%(epoch_1)s)
            AND U0."fence" = (%(fence_1)s) AND U0."session_id" = (%(session_id_1)s)))
            AND U0."status" = 'running' AND U0."lease_owner" = (%(owner)s)
            AND U0."started_at" IS NOT NULL)
        FOR UPDATE SKIP LOCKED));
-- %(2)s is 0:00:15
