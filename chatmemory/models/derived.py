"""Abstract models of rows that other apps make from messages.

A search index, a summary or a thread of a graph contains words of messages, or depends on them. Its
rows contain the range of their messages, and the core removes them with these messages, in the same
transaction: see Note [Derived rows] in chatmemory/services/derived/removal.py.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from django.core.exceptions import FieldDoesNotExist
from django.db import models, router
from django.db.models import F, OuterRef, QuerySet, Value
from django.db.models.functions import Coalesce

from chatmemory.models.fields import KeyField
from chatmemory.models.managers import PrimaryManager
from chatmemory.models.sessions import Session
from chatmemory.models.superseded import is_current

MAX_SEQ = 2**63 - 1


class DerivedQuerySet(QuerySet[Any, Any]):
    """Queries of derived rows."""

    def current(self) -> DerivedQuerySet:
        """Exclude the rows of removed, expired, hidden and superseded messages, and tombstones.

        A row is hidden if its first message is below the floor, and superseded if any message of
        its range is.
        """
        high = Coalesce(OuterRef("high"), Value(MAX_SEQ))
        return self.filter(
            is_current(OuterRef("session_id"), OuterRef("low"), high),
            session__in=Session.objects.active(),
            low__gte=F("session__first_seq"),
        )


def all_rows(model: type[models.Model], using: str | None = None) -> DerivedQuerySet:
    """Select all rows of a model, also those that its own manager hides.

    By default in the database of the sessions, in whose transactions derived rows are removed.
    """
    return DerivedQuerySet(model, using=using or router.db_for_write(Session))


class DerivedManager(PrimaryManager[Any]):
    """Reads from the database of the sessions."""

    def get_queryset(self) -> DerivedQuerySet:
        return all_rows(self.model, self._db)

    def current(self) -> DerivedQuerySet:
        """See `DerivedQuerySet.current`."""
        return self.get_queryset().current()


class DerivedRow(models.Model):
    """A row made from the messages `low` to `high` of a session. Add fields in a subclass.

    Insert it with `chatmemory.derived.store`, and read it with `objects.current()`.
    """

    contains_words: ClassVar[bool] = True
    """Whether the row is deleted when a message of its range is redacted or becomes unreadable."""
    when_hidden: ClassVar[Literal["keep", "delete"]] = "keep"
    """What happens if a message of the range is hidden or superseded: the row is kept, so that a
    restore shows it again, or deleted."""
    exported: ClassVar[bool] = False
    """Whether exports that can be imported again contain the row, as `as_export` returns it."""

    session = models.ForeignKey(Session, on_delete=models.CASCADE, related_name="+")
    low = models.BigIntegerField()
    high = models.BigIntegerField(null=True)
    """None: all messages from `low` on, also later ones."""

    objects = DerivedManager()

    class Meta:
        abstract = True
        base_manager_name = "objects"
        default_permissions = ()

    def as_export(self) -> dict[str, Any]:
        """Return the row's own values for an export, as JSON can contain them."""
        raise NotImplementedError(f"{type(self).__name__} is exported and has no as_export().")


class DerivedFileRow(DerivedRow):
    """A derived row with something outside of its table, such as a file or many further rows.

    A removal makes it a tombstone: it has no session and no range any more, and all fields except
    `needed` are emptied. After the commit `clean_up` deletes what the tombstones name.
    """

    needed: ClassVar[tuple[str, ...]] = ()
    """The names of the fields that `clean_up` needs, such as the name of a file."""

    session = models.ForeignKey(  # type: ignore[assignment]  # null: a tombstone
        Session, on_delete=models.SET_NULL, null=True, related_name="+"
    )

    class Meta(DerivedRow.Meta):
        abstract = True

    @classmethod
    def tombstones(cls) -> DerivedQuerySet:
        """Return the rows that a removal left for `clean_up`."""
        return all_rows(cls).filter(session=None)

    @classmethod
    def clean_up(cls) -> None:
        """Delete what the tombstones name, then these rows. It may be called again at any time.

        Called after the commit of a removal, before the receipt of an erasure, and by a vacuum, for
        what an interrupted call left. An erasure gets no receipt if it raises an exception.
        """
        raise NotImplementedError(f"{cls.__name__} has no clean_up().")

    @classmethod
    def emptied(cls) -> dict[str, Any]:
        """Return the columns of a tombstone."""
        own = (field for field in cls._meta.concrete_fields if not field.primary_key)
        values = {
            field.attname: None if field.null else field.get_default()
            for field in own
            if field.name not in cls.needed
        }
        return {**values, "session_id": None, "low": 0, "high": None}


class DerivedPersonRow(models.Model):
    """A row that belongs to a person and to no session, such as what a bot learned about them."""

    scope = KeyField(max_length=150, db_index=True)
    """The scope of the person: `Actor.user(user).owner`."""

    objects = DerivedManager()

    class Meta:
        abstract = True
        base_manager_name = "objects"
        default_permissions = ()

    @classmethod
    def adopt(cls, visitor: str, user: str) -> None:
        """Give the rows of a visitor to a user, who takes over the visitor's sessions.

        `visitor` and `user` are scopes. Override it if `scope` is unique.
        """
        all_rows(cls).filter(scope=visitor).update(scope=user)


_followers: dict[type[models.Model], str] = {}
"""Models that follow a session as a whole, with the name of their foreign key."""


def register(model: type[models.Model], *, session: str) -> None:
    """Delete the rows of a model together with their session: at its erasure and its vacuum.

    For a table that belongs to a conversation and was not made from its messages, such as the
    orders of a chat. `session` names its foreign key to `chatmemory.Session`. Call it in the
    `ready()` of the app.
    Raises ValueError if it is no such field, or if the model is registered with another one.
    """
    try:
        field = model._meta.get_field(session)
    except FieldDoesNotExist:
        field = None
    is_key = field is not None and (field.many_to_one or field.one_to_one)
    if field is None or not is_key or field.related_model is not Session:
        label = model._meta.label
        raise ValueError(f"{label}.{session} is no foreign key to chatmemory.Session.")
    if _followers.setdefault(model, session) != session:
        raise ValueError(f"{model._meta.label} is registered with {_followers[model]} already.")


def followers() -> dict[type[models.Model], str]:
    """Return the registered models, with the names of their foreign keys."""
    return dict(_followers)
