"""Sessions: the address, the lock and the counters of a conversation."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from django.conf import settings as django_settings
from django.db import connections, models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Case, F, FilteredRelation, OuterRef, Q, QuerySet, Subquery, Value, When
from django.db.models.fields.json import KeyTransform
from django.db.models.functions import Coalesce, Greatest, Least
from django.db.models.lookups import GreaterThan
from django.db.models.sql import Query
from django.utils.translation import gettext_lazy as _

from chatmemory.conf import settings
from chatmemory.models.fields import (
    DatabaseNow,
    DatabaseToday,
    KeyField,
    MomentField,
    SecondsAfter,
)
from chatmemory.models.indexes import PartialIndex, PrefixIndex
from chatmemory.models.managers import PrimaryManager
from chatmemory.models.values import (
    HEAD_COLUMNS,
    Head,
    Page,
    head_of,
    page_columns,
    page_of,
)


def random_epoch() -> int:
    """Return a random 40-bit number, so that sessions under a reused key have different epochs."""
    return secrets.randbits(40)


def unexpired() -> Q:
    """Match sessions that have not expired.

    A session expires at `expires_at` or `ttl_seconds` after its last message, at the earlier time.
    If both are null, it expires `SESSION_TTL` after its last message. It does not expire while a
    turn runs or waits, nor on hold.
    """
    cannot_expire = Q(running__isnull=False) | Q(waiting__gt=0) | Q(held_at__isnull=False)
    has_no_end = Q(expires_at__isnull=True)
    if settings.SESSION_TTL is not None:
        since = DatabaseNow() - timedelta(seconds=settings.SESSION_TTL)
        is_recent = Q(last_message_at__gt=since)
        is_recent |= Q(last_message_at__isnull=True, created_at__gt=since)
        has_no_end &= Q(ttl_seconds__isnull=False) | is_recent
    last = Coalesce("last_message_at", "created_at")
    lives = Q(GreaterThan(SecondsAfter(last, F("ttl_seconds")), DatabaseNow()))
    return cannot_expire | (
        (Q(expires_at__gt=DatabaseNow()) | has_no_end) & (Q(ttl_seconds__isnull=True) | lives)
    )


def unexpired_sql(connection: BaseDatabaseWrapper) -> tuple[str, tuple[Any, ...]]:
    """Return `unexpired` as SQL without table names, and its parameters."""
    return _unexpired_sql(connection.alias, settings.SESSION_TTL)


# Cached, since each append needs it.
@cache
def _unexpired_sql(alias: str, ttl: float | None) -> tuple[str, tuple[Any, ...]]:
    query = Query(Session, alias_cols=False)
    where = query.build_where(unexpired())
    sql, params = where.as_sql(query.get_compiler(using=alias), connections[alias])
    return f"({sql})", tuple(params)


def _expression(number: Any) -> Any:
    return number if hasattr(number, "resolve_expression") else Value(number)


class SessionQuerySet(QuerySet["Session"]):
    """Queries of sessions."""

    def active(self) -> SessionQuerySet:
        """Exclude purged and expired sessions."""
        return self.filter(unexpired(), removed_at__isnull=True)

    def having(
        self,
        *,
        archived: bool | None = None,
        pinned: bool | None = None,
        running: bool | None = None,
        title: str = "",
        metadata: Mapping[str, str] | None = None,
    ) -> SessionQuerySet:
        """Select by state, a part of the title, and texts in the metadata.

        None and an empty text select all.
        """
        states = {"archived_at": archived, "pinned_at": pinned, "running": running}
        given: dict[str, object] = {
            f"{column}__isnull": not is_set
            for column, is_set in states.items()
            if is_set is not None
        }
        if title:
            given["title__icontains"] = title
        found = self.filter(**given)
        for number, (key, text) in enumerate((metadata or {}).items()):
            # Not by the name of the key, which may contain the name of a look-up.
            found = found.alias(**{f"metadata_{number}": KeyTransform(key, "metadata")})
            found = found.filter(**{f"metadata_{number}": text})
        return found

    def expired(self) -> SessionQuerySet:
        """Select the expired sessions; see `unexpired`."""
        return self.filter(~unexpired())

    def at(self, scope: object, key: object) -> SessionQuerySet:
        """Select the active session at this address."""
        return self.active().filter(scope=scope, key=key)

    def of_scopes(self, *scopes: str) -> SessionQuerySet:
        """Select all sessions of these scopes: active, expired and purged."""
        # Without an empty scope, which is the removed_scope of all sessions that are not purged.
        named = [scope for scope in scopes if scope]
        return self.filter(Q(scope__in=named) | Q(removed_scope__in=named))

    def most_recent_first(self) -> SessionQuerySet:
        """Order by the last message, newest first; sessions without messages come last."""
        return self.order_by(F("last_message_at").desc(nulls_last=True), "-pk")

    def heads(self, pks: Collection[int]) -> dict[int, Head]:
        """Return heads by primary key, excluding purged and expired sessions."""
        rows = self.active().filter(pk__in=pks).with_turn().values(*HEAD_COLUMNS.values())
        return {row["pk"]: head_of(row) for row in rows}

    def page(
        self, *, after: int | None = None, before: int | None = None, limit: int | None
    ) -> Page | None:
        """Read the head and a page of rows of the one selected session in one statement.

        `after` selects the `limit` oldest rows above that seq, `before` the newest below it,
        neither the newest of all; with a `limit` of None all of them. Returns None without a
        session. With `after`, the page has the digest of the row at that seq.
        """
        rows = self.page_rows(after=after, before=before, limit=limit)
        return page_of(list(rows), has_digest=after is not None)

    def page_rows(self, *, after: Any, before: Any, limit: Any) -> QuerySet[Any, Any]:
        """Select `page_columns` for `page_of`. The numbers may be expressions."""
        # Seqs have no gaps, so a page is a range, which costs the same in a session of any length.
        low: Any = F("first_seq") - 1
        high: Any = F("last_seq")
        if after is not None:
            low = Greatest(low, _expression(after))
            high = high if limit is None else low + _expression(limit)
        else:
            high = high if before is None else Least(high, _expression(before) - 1)
            low = low if limit is None else Greatest(low, high - _expression(limit))
        span = Q(messages__seq__gt=low, messages__seq__lte=high)
        user_row = self.model._meta.get_field("messages").related_model._base_manager.filter(
            session_id=OuterRef("pk"), seq=OuterRef("row__turn")
        )
        # A search for each row would take a third of the time. Most user rows are in the page.
        is_elsewhere = Q(row__turn__lte=low) | Q(row__turn__gt=F("row__seq"))
        elsewhere = When(is_elsewhere, then=Subquery(user_row.values("client_id")))
        found: QuerySet[Any, Any] = (
            self.with_turn()
            .annotate(row=FilteredRelation("messages", condition=span))
            .annotate(at=FilteredRelation("messages", condition=Q(messages__seq=after or 0)))
            .annotate(earlier_client_id=Case(elsewhere))
            .order_by("row__seq")
            .values_list(*page_columns(has_digest=after is not None))
        )
        return found

    def content_rows(self) -> QuerySet[Any, Any]:
        """Select a `ContentRow` for each row of the one selected session, ordered by seq.

        For a session without rows it is one, and the columns of its message are NULL.
        """
        seqs = Q(messages__seq__gte=F("first_seq"), messages__seq__lte=F("last_seq"))
        has_superseded = When(superseded_to__gte=F("first_seq"), then=F("pk"))
        found: QuerySet[Any, Any] = (
            self.annotate(row=FilteredRelation("messages", condition=seqs))
            .annotate(superseded_in=Case(has_superseded))
            .order_by("row__seq")
            .values("row__role", "row__text", "row__body", "row__seq", "epoch", "superseded_in")
        )
        return found

    def with_turn(self) -> SessionQuerySet:
        """Join the running turn as `now`."""
        running = Q(turns__client_id=F("running"))
        return self.annotate(now=FilteredRelation("turns", condition=running))


class Session(models.Model):
    """A conversation. Its row is the lock of every write, see Note [One lock for one session]."""

    scope = KeyField(_("scope"), max_length=150)
    key = KeyField(_("key"), max_length=200)
    owner = models.ForeignKey(
        django_settings.AUTH_USER_MODEL,
        verbose_name=_("owner"),
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="+",
    )
    title = models.CharField(_("title"), max_length=200, blank=True, db_default="")
    instructions = models.TextField(_("instructions"), blank=True, default="")
    metadata = models.JSONField(_("metadata"), blank=True, default=dict)

    first_seq = models.BigIntegerField(_("first message"), db_default=1)
    """The floor; see Note [Floor and epoch]."""
    last_seq = models.BigIntegerField(_("last message"), db_default=0)
    """The counter from which rows get their seq; see Note [Commit order]."""
    stored_from = models.BigIntegerField(db_default=1)
    """The lowest seq that still exists: vacuum deletes rows below the floor."""
    superseded_to = models.BigIntegerField(db_default=0)
    """See Note [Superseded ranges]."""
    epoch = models.BigIntegerField(default=random_epoch)
    """Changes at clear and purge; see Note [Floor and epoch]."""
    revision = models.BigIntegerField(db_default=0)
    """Counts changes other than new rows."""
    rows_revision = models.BigIntegerField(db_default=0)
    """The highest revision of its rows. Without it, each check for changes would read all rows."""
    # Also in the session, since a condition of each append must be a column of the locked row.
    running = KeyField(max_length=64, null=True)
    """The client_id of the running turn; null when idle."""
    waiting = models.IntegerField(db_default=0)
    """The number of waiting turns and deferred batches."""
    fence = models.BigIntegerField(db_default=0)
    """See Note [Fence]."""
    tokens = models.BigIntegerField(_("tokens"), db_default=0)
    """The sum of all rows that were ever stored."""

    last_message_at = MomentField(_("last message at"), null=True)
    last_active_day = models.DateField(db_default=DatabaseToday(), db_index=True)
    expires_at = MomentField(_("expires at"), null=True, blank=True, db_index=True)
    ttl_seconds = models.IntegerField(null=True)
    """Expires as long after its last message; in place of `SESSION_TTL`."""
    archived_at = MomentField(_("archived at"), null=True)
    pinned_at = MomentField(_("pinned at"), null=True)
    held_at = MomentField(_("on hold since"), null=True)
    removed_at = MomentField(_("purged at"), null=True)
    removed_scope = KeyField(max_length=150, db_default="", db_index=True)
    """The scope of a session before its purge, for restore and erasure; otherwise empty."""
    origin = KeyField(max_length=250, null=True)
    """Of an import from another product: its name, a colon, and the conversation's id there."""
    origin_row = KeyField(max_length=200, null=True)
    """The id there of the last imported message, so that a later import begins behind it."""
    created_at = MomentField(_("created at"), db_default=DatabaseNow())

    objects = PrimaryManager.from_queryset(SessionQuerySet)()

    class Meta:
        base_manager_name = "objects"
        verbose_name = _("conversation")
        verbose_name_plural = _("conversations")
        constraints = (
            models.UniqueConstraint(fields=["scope", "key"], name="chatmemory_session_address"),
            models.CheckConstraint(
                condition=Q(first_seq__gte=1, first_seq__lte=F("last_seq") + 1),
                name="chatmemory_session_floor",
            ),
            models.CheckConstraint(
                condition=Q(stored_from__gte=1, stored_from__lte=F("first_seq")),
                name="chatmemory_session_stored",
            ),
        )
        indexes = (
            # For the lists of operators. None is of a column that an append or a claim changes:
            # PostgreSQL would then write every index again (no HOT update).
            *(
                PartialIndex(
                    fields=["last_active_day"],
                    where=Q(**{f"{column}__isnull": False}),
                    name=f"chatmemory_session_{state}",
                )
                for state, column in (
                    ("archived", "archived_at"),
                    ("held", "held_at"),
                    ("removed", "removed_at"),
                )
            ),
            models.Index(fields=["created_at"], name="chatmemory_session_created"),
            PrefixIndex("key", name="chatmemory_session_key"),
            PrefixIndex("title", is_case_insensitive=True, name="chatmemory_session_title"),
        )
        default_permissions = ("view",)
        # One for each action of an operator; the admin checks each of them.
        permissions = (
            ("view_transcript", _("Can read transcripts")),
            ("view_unmasked", _("Can reveal masked transcripts")),
            ("trim_history", _("Can trim history")),
            ("clear_history", _("Can clear history")),
            ("purge_history", _("Can purge conversations")),
            ("restore_history", _("Can undo trims, clears and purges")),
            ("redact_message", _("Can redact messages")),
            ("stop_turn", _("Can stop turns")),
            ("archive_session", _("Can archive conversations")),
            ("hold_session", _("Can put conversations on hold")),
            ("tag_session", _("Can tag conversations")),
            ("note_session", _("Can read and write notes")),
            ("export_history", _("Can export history")),
            ("erase_person", _("Can erase a person")),
            ("view_audit", _("Can read the audit")),
            ("view_health", _("Can view the health of the app")),
        )

    def __str__(self) -> str:
        """Return the title or the key; only the key, if operators may not read titles."""
        # Django shows it in places that no ModelAdmin controls, such as autocompletion.
        title = self.title if settings.TRANSCRIPTS == "normal" else ""
        return title or self.key

    @property
    def message_count(self) -> int:
        """The number of rows from the floor on."""
        return self.last_seq - self.first_seq + 1

    @property
    def ends_at(self) -> datetime | None:
        """When an idle session without a hold expires; None for never."""
        ttl: float | None = self.ttl_seconds
        if ttl is None and self.expires_at is None:
            ttl = settings.SESSION_TTL
        last = self.last_message_at or self.created_at
        ends = [] if ttl is None else [last + timedelta(seconds=ttl)]
        ends += [] if self.expires_at is None else [self.expires_at]
        return min(ends, default=None)
