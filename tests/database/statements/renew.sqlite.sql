-- Renew: extends the leases of the runs of a process, here two, every few seconds.

UPDATE "chatmemory_turn"
SET "lease_owner" = %(owner)s, "lease_until" = (django_format_dtdelta('+',
    STRFTIME('%Y-%m-%d %H:%M:%f','NOW'), %(2)s))
WHERE ((("chatmemory_turn"."client_id" = (%(client_id_0)s)
    AND "chatmemory_turn"."epoch" = (%(epoch_0)s) AND "chatmemory_turn"."fence" = (%(fence_0)s)
    AND "chatmemory_turn"."session_id" = (%(session_id_0)s))
    OR ("chatmemory_turn"."client_id" = (%(client_id_1)s)
    AND "chatmemory_turn"."epoch" = (%(epoch_1)s) AND "chatmemory_turn"."fence" = (%(fence_1)s)
    AND "chatmemory_turn"."session_id" = (%(session_id_1)s)))
    AND "chatmemory_turn"."status" = 'running' AND "chatmemory_turn"."lease_owner" = (%(owner)s)
    AND "chatmemory_turn"."started_at" IS NOT NULL);
-- %(2)s is 15000000
