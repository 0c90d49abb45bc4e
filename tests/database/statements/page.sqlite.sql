-- Page: reads the head and the newest rows of a session when a client opens or reloads it.

SELECT row."seq" AS "row__seq", row."role" AS "row__role", row."text" AS "row__text",
    row."body" AS "row__body", row."client_id" AS "row__client_id", row."turn" AS "row__turn",
    row."step" AS "row__step", row."status" AS "row__status", row."error" AS "row__error",
    row."model" AS "row__model", row."tokens" AS "row__tokens", row."revision" AS "row__revision",
    row."redacted" AS "row__redacted", row."quarantined" AS "row__quarantined",
    row."feedback" AS "row__feedback", row."created_at" AS "row__created_at",
    CASE WHEN (row."turn" <= (MAX(("chatmemory_session"."first_seq" - %(1)s),
    ("chatmemory_session"."last_seq" - %(limit)s)))
    OR row."turn" > (row."seq")) THEN (SELECT U0."client_id" AS "client_id"
    FROM "chatmemory_message" U0
    WHERE (U0."seq" = (row."turn")
        AND U0."session_id" = ("chatmemory_session"."id"))) ELSE NULL END AS "earlier_client_id",
        "chatmemory_session"."id" AS "pk", "chatmemory_session"."scope" AS "scope",
        "chatmemory_session"."key" AS "key", "chatmemory_session"."title" AS "title",
        "chatmemory_session"."epoch" AS "epoch", "chatmemory_session"."first_seq" AS "first_seq",
        "chatmemory_session"."last_seq" AS "last_seq",
        "chatmemory_session"."superseded_to" AS "superseded_to",
        "chatmemory_session"."revision" AS "revision",
        "chatmemory_session"."rows_revision" AS "rows_revision",
        "chatmemory_session"."archived_at" AS "archived_at",
        "chatmemory_session"."running" AS "running", now."status" AS "now__status",
        now."started_at" AS "now__started_at", "chatmemory_session"."waiting" AS "waiting"
FROM "chatmemory_session"
LEFT OUTER JOIN "chatmemory_message" row ON ("chatmemory_session"."id" = row."session_id"
    AND ((row."seq" > (MAX(("chatmemory_session"."first_seq" - %(3)s),
    ("chatmemory_session"."last_seq" - %(limit)s)))
    AND row."seq" <= ("chatmemory_session"."last_seq"))))
LEFT OUTER JOIN "chatmemory_turn" now ON ("chatmemory_session"."id" = now."session_id"
    AND (now."client_id" = ("chatmemory_session"."running")))
WHERE (("chatmemory_session"."running" IS NOT NULL OR "chatmemory_session"."waiting" > %(5)s
    OR "chatmemory_session"."held_at" IS NOT NULL
    OR (("chatmemory_session"."expires_at" > (STRFTIME('%Y-%m-%d %H:%M:%f','NOW'))
    OR "chatmemory_session"."expires_at" IS NULL) AND ("chatmemory_session"."ttl_seconds" IS NULL
    OR STRFTIME('%Y-%m-%d %H:%M:%f', COALESCE("chatmemory_session"."last_message_at",
    "chatmemory_session"."created_at"),
    "chatmemory_session"."ttl_seconds" || ' seconds') > (STRFTIME('%Y-%m-%d %H:%M:%f','NOW')))))
    AND "chatmemory_session"."removed_at" IS NULL AND "chatmemory_session"."key" = (%(key)s)
    AND "chatmemory_session"."scope" = (%(scope)s))
ORDER BY 1 ASC;
-- %(1)s is 1
-- %(3)s is 1
-- %(5)s is 0
