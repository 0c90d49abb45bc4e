-- Save: saves the partial text of a running turn, again and again while the model writes.

UPDATE "chatmemory_turn"
SET "partial" = %(partial)s, "step" = %(step)s
WHERE ("chatmemory_turn"."client_id" = (%(client_id_0)s)
    AND "chatmemory_turn"."epoch" = (%(epoch_0)s) AND "chatmemory_turn"."fence" = (%(fence_0)s)
    AND "chatmemory_turn"."session_id" = (%(session_id_0)s)
    AND "chatmemory_turn"."status" = 'running');

COMMIT;
