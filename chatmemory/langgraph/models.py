"""Threads of graphs, with their checkpoints, the values of their channels and their writes."""

from __future__ import annotations

import hashlib
import uuid
from datetime import timedelta
from typing import Any

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import models
from django.db.models import Exists, F, Max, OuterRef, Value
from django.db.models.functions import Coalesce, Greatest
from django.utils.translation import gettext_lazy as _

from chatmemory.conf import settings
from chatmemory.database.locks import locked_transaction
from chatmemory.derived import DerivedFileRow, DerivedPersonRow, DerivedRow
from chatmemory.models import DatabaseNow, KeyField, Session, Turn, WithdrawnRange, is_current
from chatmemory.models.derived import MAX_SEQ, DerivedQuerySet, all_rows
from chatmemory.models.managers import PrimaryManager
from chatmemory.models.sessions import random_epoch
from chatmemory.services.retention.rules import retention_rules

# Otherwise Django would add these models to the app `chatmemory`, which contains this package.
if not apps.is_installed("chatmemory.langgraph"):
    raise ImproperlyConfigured("Add chatmemory.langgraph to INSTALLED_APPS.")

CHUNK = 1_000
"""Rows of a thread that `clean_up` deletes in one transaction."""

TRACE_DAYS = 3
"""How long an empty thread stays in place of a deleted one; no run takes that long."""

MAX_THREAD_ID_CHARS = 255
MAX_ID_CHARS = 100

# Note [Threads]
#
# A thread belongs either to a session or to a person. The core removes both, as derived rows:
# - A thread of a session has its primary key, a range of messages, and no scope. It follows the
#   session through an adoption, and is hidden while its first message is, or if one was superseded
#   after the run that created it had begun. What was superseded before is not in the thread.
# - A thread of a person has a scope, and no session. An adoption moves it.
# - A thread with neither is a tombstone: no reader finds it, and no run continues it, since its
#   epoch is another one. `clean_up` deletes its rows in chunks.
# After a deletion an empty thread takes the place, for some days: runs that began before it find
# another epoch, and store nothing.
# `key` identifies a thread in both cases. It is null in tombstones, so that the id is free
# immediately, and in a hidden thread of which a run used the id during a hold.


class Thread(DerivedFileRow, DerivedPersonRow):
    """What a graph remembers under one thread id. See Note [Threads]."""

    key = KeyField(max_length=64, null=True, unique=True)
    thread_id = KeyField(_("thread"), max_length=MAX_THREAD_ID_CHARS)
    epoch = models.BigIntegerField(default=random_epoch)
    """Differs between threads that follow one another under one id; see Note [Fence of a run]."""
    last_active_day = models.DateField(_("last active"), null=True, db_index=True)
    deleted_day = models.DateField(null=True, db_index=True)
    """When the thread before this one was deleted, until a run uses the id again."""
    turn = KeyField(max_length=64, null=True)
    """The client_id of the turn that asked, for a thread of RESPONDER. See Note [Threads of turns]
    in chatmemory/langgraph/runs.py."""
    known_seq = models.BigIntegerField(db_default=0, default=0)
    """The newest message of the session when the run that created the thread began."""
    known_withdrawal = models.BigIntegerField(db_default=0, default=0)
    """The primary key of the newest withdrawn range then."""

    class Meta(DerivedFileRow.Meta):
        abstract = False
        verbose_name = _("thread of a graph")
        verbose_name_plural = _("threads of graphs")
        default_permissions = ("view",)  # type: ignore[assignment]  # of any length in Django

    def __str__(self) -> str:
        return str(self.thread_id)

    @classmethod
    def visible(cls, session_pk: int) -> DerivedQuerySet:
        """Select the threads of a session that are not hidden. See Note [Threads]."""
        high = Coalesce(OuterRef("high"), Value(MAX_SEQ))
        turns = Turn.objects.filter(session=session_pk, user_seq__gt=OuterRef("known_seq"))
        withdrawn = WithdrawnRange.objects.filter(
            session=session_pk, pk__gt=OuterRef("known_withdrawal"), low__lte=high
        )
        return all_rows(cls).filter(
            ~Exists(turns.superseding(OuterRef("low"), high)),
            ~Exists(withdrawn.filter(high__gte=OuterRef("low"))),
            session=session_pk,
            session__in=Session.objects.active(),
            low__gte=F("session__first_seq"),
        )

    @classmethod
    def tombstones(cls) -> DerivedQuerySet:
        return all_rows(cls).filter(session=None, scope="")

    @classmethod
    def bury(cls, threads: DerivedQuerySet) -> int:
        """Make tombstones of threads, and return their number; `clean_up` deletes their rows."""
        return threads.update(**cls.emptied())

    @classmethod
    def clean_up(cls) -> None:
        """Delete the rows of tombstones, of answered questions, and of people's idle threads."""
        past = DatabaseNow() - timedelta(days=TRACE_DAYS)
        cls.bury(all_rows(cls).filter(deleted_day__lt=past))
        # A later message follows the question, and no run can be the one that answers it.
        closed = all_rows(cls).exclude(turn=None).filter(session__running=None)
        cls.bury(closed.filter(session__last_seq__gt=F("high")))
        if (seconds := _max_idle_seconds()) is not None:
            # A day more, since the last day has no time.
            idle = DatabaseNow() - timedelta(seconds=seconds, days=1)
            cls.bury(all_rows(cls).exclude(scope="").filter(last_active_day__lt=idle))
        for pk in list(cls.tombstones().order_by("pk").values_list("pk", flat=True)):
            for model in (Write, Blob, Checkpoint):
                while _delete_some(model, pk):
                    pass
            with locked_transaction():
                all_rows(cls).filter(pk=pk).delete()

    @classmethod
    def adopt(cls, visitor: str, user: str) -> None:
        """Move a visitor's threads; an id that the user has already becomes a new UUID."""
        for thread in all_rows(cls).filter(scope=visitor).order_by("pk"):
            key = key_of(user, thread.thread_id)
            if all_rows(cls).filter(key=key).exists():
                thread.thread_id = str(uuid.uuid4())
                key = key_of(user, thread.thread_id)
            # Unless it was deleted meanwhile, which no lock prevents.
            moved = all_rows(cls).filter(pk=thread.pk, scope=visitor)
            moved.update(scope=user, key=key, thread_id=thread.thread_id)


class SessionState(DerivedRow):
    """What a responder keeps of a session under a name; see `chatmemory.langgraph.state`.

    It was made from the messages up to `high`.
    """

    name = KeyField(max_length=MAX_ID_CHARS)
    value = models.TextField()
    """As JSON."""

    class Meta(DerivedRow.Meta):
        abstract = False
        verbose_name = _("conversation state")
        verbose_name_plural = _("conversation states")
        indexes = (models.Index(fields=["session", "name"], name="chatmemory_langgraph_state"),)

    def __str__(self) -> str:
        return str(self.name)

    @classmethod
    def visible(cls, session: Session) -> DerivedQuerySet:
        """Select the states of a session of which no message was hidden or superseded since.

        Messages that were superseded before a state was made were not in the window. What `session`
        hid when it was read stays hidden from its reader: a run must not know more messages than
        the states that it keeps name.
        """
        newest = OuterRef("high")
        return all_rows(cls).filter(
            is_current(session.pk, newest, newest),
            session=session.pk,
            session__in=Session.objects.active(),
            low__gte=Greatest(F("session__first_seq"), session.first_seq),
        )


def key_of(owner: str | int, thread_id: str) -> str:
    """Return the key of a thread of a person, by scope, or of a session, by primary key."""
    name = f"session:{owner}" if isinstance(owner, int) else owner
    return hashlib.sha256(f"{name}\0{thread_id}".encode()).hexdigest()


def newest_withdrawal(session_pk: int) -> int:
    """Return the primary key of the newest withdrawn range; 0 without one. Needs the lock."""
    found = WithdrawnRange.objects.filter(session=session_pk)
    return found.aggregate(newest=Max("pk"))["newest"] or 0


def hash_of(namespace: str) -> str:
    """Return a text of a fixed length for the namespace of a subgraph, which may be very long."""
    return hashlib.sha256(namespace.encode()).hexdigest()[:32]


def _max_idle_seconds() -> float | None:
    """Return how long a thread of a person is kept without a run, by the rules for sessions."""
    try:
        rules = [rule for rule in retention_rules() if rule.tag is None]
    except ValueError:  # a system check reports it
        rules = []
    ages = [settings.SESSION_TTL, *(age for rule in rules for age in (rule.max_age, rule.max_idle))]
    return min((age for age in ages if age is not None), default=None)


def _delete_some(model: type[models.Model], thread_pk: int) -> bool:
    rows = model._default_manager.filter(thread=thread_pk)
    # By primary keys, since not all databases can limit a DELETE.
    pks = list(rows.order_by("pk").values_list("pk", flat=True)[:CHUNK])
    if pks:
        with locked_transaction():
            rows.filter(pk__in=pks).delete()
    return bool(pks)


class _ThreadRow(models.Model):
    """A row of a thread, in the namespace of the graph or of a subgraph."""

    thread = models.ForeignKey(Thread, on_delete=models.CASCADE, related_name="+", db_index=False)
    ns_hash = KeyField(max_length=32)
    type = KeyField(max_length=50)
    data = models.BinaryField()
    """As the serializer of the saver returned it, which may encrypt."""

    objects = PrimaryManager[Any]()

    class Meta:
        abstract = True
        base_manager_name = "objects"
        default_permissions = ()


class Checkpoint(_ThreadRow):
    """The state of a graph between two steps, without the values of its channels."""

    ns = models.TextField()
    checkpoint_id = KeyField(max_length=MAX_ID_CHARS)
    parent_id = KeyField(max_length=MAX_ID_CHARS, null=True)
    metadata_type = KeyField(max_length=50)
    metadata = models.BinaryField()
    run_id = KeyField(max_length=MAX_ID_CHARS, null=True, db_index=True)

    class Meta(_ThreadRow.Meta):
        constraints = (
            models.UniqueConstraint(
                fields=["thread", "ns_hash", "checkpoint_id"],
                name="chatmemory_langgraph_checkpoint_key",
            ),
        )
        indexes = (
            # The newest of a namespace: see Note [Newest checkpoint].
            models.Index(fields=["thread", "ns_hash", "id"], name="chatmemory_langgraph_newest"),
        )

    def __str__(self) -> str:
        return str(self.checkpoint_id)


class Blob(_ThreadRow):
    """The value of a channel in one version, which several checkpoints may refer to."""

    EMPTY = "empty"
    """The type of a version without a value."""

    channel = KeyField(max_length=255)
    version = KeyField(max_length=MAX_ID_CHARS)

    class Meta(_ThreadRow.Meta):
        constraints = (
            models.UniqueConstraint(
                fields=["thread", "ns_hash", "channel", "version"],
                name="chatmemory_langgraph_blob_key",
            ),
        )

    def __str__(self) -> str:
        return f"{self.channel} {self.version}"


class Write(_ThreadRow):
    """What a task wrote after a checkpoint, so that a resumed run does not repeat the task."""

    checkpoint_id = KeyField(max_length=MAX_ID_CHARS)
    task_id = KeyField(max_length=MAX_ID_CHARS)
    idx = models.IntegerField()
    """The place in the writes of the task; negative for errors, interrupts and answers."""
    channel = KeyField(max_length=255)
    task_path = models.TextField(default="")

    class Meta(_ThreadRow.Meta):
        constraints = (
            models.UniqueConstraint(
                fields=["thread", "ns_hash", "checkpoint_id", "task_id", "idx"],
                name="chatmemory_langgraph_write_key",
            ),
        )

    def __str__(self) -> str:
        return f"{self.channel} {self.idx}"
