-- Start: records the start of a run directly after its claim, unless its fence is lost.

UPDATE "chatmemory_turn"
SET "started_at" = STRFTIME('%Y-%m-%d %H:%M:%f','NOW'), "lease_owner" = %(owner)s,
    "lease_until" = (django_format_dtdelta('+', STRFTIME('%Y-%m-%d %H:%M:%f','NOW'), %(2)s))
WHERE ("chatmemory_turn"."client_id" = (%(client_id_0)s)
    AND "chatmemory_turn"."epoch" = (%(epoch_0)s) AND "chatmemory_turn"."fence" = (%(fence_0)s)
    AND "chatmemory_turn"."session_id" = (%(session_id_0)s)
    AND "chatmemory_turn"."status" = 'running' AND "chatmemory_turn"."started_at" IS NULL);
-- %(2)s is 15000000

COMMIT;
