"""Sessions: the address, the lock and the counters of a conversation."""

from __future__ import annotations

import secrets
from collections.abc import Collection
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from django.conf import settings as django_settings
from django.db import connections, models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import F, FilteredRelation, OuterRef, Q, QuerySet, Subquery, Value
from django.db.models.functions import Greatest, Least
from django.db.models.sql import Query
from django.utils.translation import gettext_lazy as _

from chatmemory.conf import settings
from chatmemory.models.fields import DatabaseNow, DatabaseToday, KeyField
from chatmemory.models.managers import PrimaryManager
from chatmemory.models.values import (
    HEAD_COLUMNS,
    MARKED_COLUMNS,
    STORED_COLUMNS,
    Head,
    Page,
    head_of,
    mark_of,
    stored_of,
)


def random_epoch() -> int:
    """A number that no earlier session under the same key began with."""
    return secrets.randbits(40)


def unexpired() -> Q:
    """Its end has not come; one that has a live turn or is on hold has none.

    The end is `expires_at`, or else `SESSION_TTL` after the last message.
    """
    goes_on = Q(running__isnull=False) | Q(waiting__gt=0) | Q(held_at__isnull=False)
    if settings.SESSION_TTL is None:
        is_recent = Q()
    else:
        since = DatabaseNow() - timedelta(seconds=settings.SESSION_TTL)
        is_recent = Q(last_message_at__gt=since)
        is_recent |= Q(last_message_at__isnull=True, created_at__gt=since)
    return goes_on | Q(expires_at__gt=DatabaseNow()) | (Q(expires_at__isnull=True) & is_recent)


def unexpired_sql(connection: BaseDatabaseWrapper) -> tuple[str, tuple[Any, ...]]:
    """The same in SQL, its columns without the table's name, and its parameters."""
    return _unexpired_sql(connection.alias, settings.SESSION_TTL)


@cache
def _unexpired_sql(alias: str, ttl: float | None) -> tuple[str, tuple[Any, ...]]:
    query = Query(Session, alias_cols=False)
    where = query.build_where(unexpired())
    sql, params = where.as_sql(query.get_compiler(using=alias), connections[alias])
    return f"({sql})", tuple(params)


class SessionQuerySet(QuerySet["Session"]):
    """What can be asked of sessions."""

    def living(self) -> SessionQuerySet:
        """Those neither removed nor expired."""
        return self.filter(unexpired(), removed_at__isnull=True)

    def expired(self) -> SessionQuerySet:
        """Those whose end has come; one that is held or has a live turn goes on."""
        return self.filter(~unexpired())

    def at(self, scope: str, key: str) -> SessionQuerySet:
        """The one living session of this address, or none."""
        return self.living().filter(scope=scope, key=key)

    def of_scopes(self, *scopes: str) -> SessionQuerySet:
        """All that are or were in these scopes: living, expired and purged ones."""
        named = [scope for scope in scopes if scope]  # those not purged have an empty one
        return self.filter(Q(scope__in=named) | Q(removed_scope__in=named))

    def most_recent_first(self) -> SessionQuerySet:
        """In order of the last message, newest first; those without one last."""
        return self.order_by(F("last_message_at").desc(nulls_last=True), "-pk")

    def heads(self, pks: Collection[int]) -> dict[int, Head]:
        """The heads of these sessions by primary key; removed and expired ones are left out."""
        rows = self.living().filter(pk__in=pks).with_turn().values(*HEAD_COLUMNS)
        return {row["pk"]: head_of(row) for row in rows}

    def page(
        self, *, after: int | None = None, before: int | None = None, limit: int | None
    ) -> Page | None:
        """The head of the one session selected and a page of its rows, in one statement.

        `after` gives the `limit` oldest rows above that number, `before` the newest below it,
        neither the newest of all; a `limit` of None is all of them. None where there is no
        session. The numbers have no holes, so a page is a range of them, and costs the same in a
        session of any length. With `after`, the page has the mark of the row at that number.
        """
        low: Any = F("first_seq") - 1
        high: Any = F("last_seq")
        if after is not None:
            low = Greatest(low, Value(after))
            high = high if limit is None else low + limit
        else:
            high = high if before is None else Least(high, Value(before - 1))
            low = low if limit is None else Greatest(low, high - limit)
        span = Q(messages__seq__gt=low, messages__seq__lte=high)
        user_row = self.model._meta.get_field("messages").related_model._base_manager.filter(
            session_id=OuterRef("pk"), seq=OuterRef("row__turn")
        )
        found = (
            self.with_turn()
            .annotate(row=FilteredRelation("messages", condition=span))
            .annotate(turn_client_id=Subquery(user_row.values("client_id")))
            .annotate(at=FilteredRelation("messages", condition=Q(messages__seq=after or 0)))
            .order_by("row__seq")
            .values(
                *HEAD_COLUMNS,
                *(f"at__{name}" for name in (MARKED_COLUMNS if after else ())),
                "turn_client_id",
                *(f"row__{name}" for name in STORED_COLUMNS),
            )
        )
        values = list(found)
        if not values:
            return None
        rows = [stored_of(row, "row__") for row in values if row["row__seq"] is not None]
        marked = [values[0].get(f"at__{name}") for name in MARKED_COLUMNS]
        mark = mark_of(*marked) if marked[0] is not None else ""
        return Page(head=head_of(values[0]), rows=rows, mark=mark)

    def with_turn(self) -> SessionQuerySet:
        """Each with its running turn, under `now`."""
        running = Q(turns__client_id=F("running"))
        return self.annotate(now=FilteredRelation("turns", condition=running))


class Session(models.Model):
    """A conversation. Its row is the lock: whoever writes to the session holds it."""

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
    last_seq = models.BigIntegerField(_("last message"), db_default=0)
    stored_from = models.BigIntegerField(db_default=1)
    superseded_to = models.BigIntegerField(db_default=0)  # no row above it is superseded
    epoch = models.BigIntegerField(default=random_epoch)
    revision = models.BigIntegerField(db_default=0)
    rows_revision = models.BigIntegerField(db_default=0)  # the highest of a row, which has no index
    running = KeyField(max_length=64, null=True)  # null is "idle", a condition of each append
    waiting = models.IntegerField(db_default=0)
    fence = models.BigIntegerField(db_default=0)
    tokens = models.BigIntegerField(_("tokens"), db_default=0)

    last_message_at = models.DateTimeField(_("last message at"), null=True)
    last_active_day = models.DateField(db_default=DatabaseToday(), db_index=True)
    expires_at = models.DateTimeField(_("expires at"), null=True, blank=True, db_index=True)
    archived_at = models.DateTimeField(_("archived at"), null=True)
    held_at = models.DateTimeField(_("on hold since"), null=True)
    removed_at = models.DateTimeField(_("purged at"), null=True)
    removed_scope = KeyField(max_length=150, db_default="", db_index=True)
    created_at = models.DateTimeField(_("created at"), db_default=DatabaseNow())

    objects = PrimaryManager.from_queryset(SessionQuerySet)()

    class Meta:
        base_manager_name = "objects"
        verbose_name = _("session")
        verbose_name_plural = _("sessions")
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
        permissions = (
            ("view_transcript", _("Can read what was said")),
            ("view_unmasked", _("Can read it unmasked")),
            ("trim_history", _("Can trim and clear history")),
            ("purge_history", _("Can purge sessions")),
            ("export_history", _("Can export history")),
            ("redact_message", _("Can redact messages")),
            ("hold_session", _("Can put sessions on hold")),
            ("tag_session", _("Can tag sessions")),
            ("erase_person", _("Can erase a person")),
            ("view_audit", _("Can read the audit")),
        )

    def __str__(self) -> str:
        return self.title or self.key

    @property
    def message_count(self) -> int:
        """How many rows stand above the floor."""
        return self.last_seq - self.first_seq + 1

    @property
    def ends_at(self) -> datetime | None:
        """When it expires if nothing more is said, and nothing runs or holds it; None for never."""
        if self.expires_at is not None or settings.SESSION_TTL is None:
            return self.expires_at
        return (self.last_message_at or self.created_at) + timedelta(seconds=settings.SESSION_TTL)
