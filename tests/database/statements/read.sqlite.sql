-- Read: reads the session and its owner for a responder when a run has started.

SELECT "chatmemory_session"."id" AS "id", "chatmemory_session"."scope" AS "scope",
    "chatmemory_session"."key" AS "key", "chatmemory_session"."owner_id" AS "owner_id",
    "chatmemory_session"."title" AS "title", "chatmemory_session"."instructions" AS "instructions",
    "chatmemory_session"."metadata" AS "metadata", "chatmemory_session"."first_seq" AS "first_seq",
    "chatmemory_session"."last_seq" AS "last_seq",
    "chatmemory_session"."stored_from" AS "stored_from",
    "chatmemory_session"."superseded_to" AS "superseded_to",
    "chatmemory_session"."epoch" AS "epoch", "chatmemory_session"."revision" AS "revision",
    "chatmemory_session"."rows_revision" AS "rows_revision",
    "chatmemory_session"."running" AS "running", "chatmemory_session"."waiting" AS "waiting",
    "chatmemory_session"."fence" AS "fence", "chatmemory_session"."tokens" AS "tokens",
    "chatmemory_session"."last_message_at" AS "last_message_at",
    "chatmemory_session"."last_active_day" AS "last_active_day",
    "chatmemory_session"."expires_at" AS "expires_at",
    "chatmemory_session"."ttl_seconds" AS "ttl_seconds",
    "chatmemory_session"."archived_at" AS "archived_at",
    "chatmemory_session"."pinned_at" AS "pinned_at", "chatmemory_session"."held_at" AS "held_at",
    "chatmemory_session"."removed_at" AS "removed_at",
    "chatmemory_session"."removed_scope" AS "removed_scope",
    "chatmemory_session"."origin" AS "origin", "chatmemory_session"."origin_row" AS "origin_row",
    "chatmemory_session"."created_at" AS "created_at",
    "chatmemory_session"."owner_id" AS "owner__id", "auth_user"."password" AS "owner__password",
    "auth_user"."last_login" AS "owner__last_login",
    "auth_user"."is_superuser" AS "owner__is_superuser",
    "auth_user"."username" AS "owner__username", "auth_user"."first_name" AS "owner__first_name",
    "auth_user"."last_name" AS "owner__last_name", "auth_user"."email" AS "owner__email",
    "auth_user"."is_staff" AS "owner__is_staff", "auth_user"."is_active" AS "owner__is_active",
    "auth_user"."date_joined" AS "owner__date_joined"
FROM "chatmemory_session"
LEFT OUTER JOIN "auth_user" ON ("chatmemory_session"."owner_id" = "auth_user"."id")
WHERE "chatmemory_session"."id" = (%(pk)s);
