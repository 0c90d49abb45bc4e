-- Start: records the start of a run directly after its claim, unless its fence is lost.

UPDATE "chatmemory_turn"
SET "started_at" = CLOCK_TIMESTAMP(), "lease_owner" = %(owner)s,
    "lease_until" = (CLOCK_TIMESTAMP() + %(2)s)
WHERE ("chatmemory_turn"."client_id" = (%(client_id_0)s)
    AND "chatmemory_turn"."epoch" = (%(epoch_0)s) AND "chatmemory_turn"."fence" = (%(fence_0)s)
    AND "chatmemory_turn"."session_id" = (%(session_id_0)s)
    AND "chatmemory_turn"."status" = 'running' AND "chatmemory_turn"."started_at" IS NULL
    AND (SELECT set_config('lock_timeout', '2000ms', true)) IS NOT NULL)
RETURNING "started_at";
-- %(2)s is 0:00:15
