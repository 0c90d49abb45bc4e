"""The audit: records of removals, exports and reads, and the seals over them; never content."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from chatmemory.models.fields import DatabaseNow, MomentField
from chatmemory.models.indexes import PartialIndex
from chatmemory.models.managers import PrimaryManager


class AuditAction(models.TextChoices):
    """What an audit entry records. The column has no `choices`: a new action is no migration."""

    READ = "read", _("Read")
    REVEAL = "reveal", _("Revealed")
    TRIM = "trim", _("Trimmed")
    CLEAR = "clear", _("Cleared")
    PURGE = "purge", _("Purged")
    WITHDRAW = "withdraw", _("Withdrawn")
    RESTORE = "restore", _("Restored")
    DATABASE_RESTORED = "database_restored", _("Database restored")
    REDACT = "redact", _("Redacted")
    ERASURE_STARTED = "erasure_started", _("Erasure started")
    ERASE = "erase", _("Erased")
    USER_DELETED = "user_deleted", _("User deleted")
    HOLD = "hold", pgettext_lazy("past", "Put on hold")
    RELEASE = "release", _("Released")
    ARCHIVE = "archive", _("Archived")
    UNARCHIVE = "unarchive", _("Unarchived")
    RENAME = "rename", _("Renamed")
    UPDATE = "update", _("Updated")
    TAG = "tag", _("Tagged")
    UNTAG = "untag", _("Tag removed")
    STOP = "stop", _("Reply stopped")
    END = "end", _("Stuck reply ended")
    NOTE = "note", _("Note added")
    DELETE_NOTE = "delete_note", _("Note deleted")
    EXPORT = "export", _("Exported")
    IMPORT = "import", _("Imported")
    ADOPT = "adopt", _("Moved to an account")
    REFUSED = "refused", _("Refused")
    REPAIR = "repair", _("Repaired")


NO_READING = ~Q(action=AuditAction.READ.value)
"""Matches all entries but readings, which may be 99 % of 5 million."""


class AuditEntry(models.Model):
    """The record of one action, in its transaction. The actor is text, to outlive the account."""

    actor_kind = models.CharField(max_length=16)
    actor_id = models.CharField(max_length=150)
    actor_label = models.CharField(max_length=200)
    action = models.CharField(max_length=32)
    """A member of `AuditAction`."""
    session_pk = models.BigIntegerField(null=True, db_index=True)
    """Null for an action on several sessions. Not a foreign key: an entry outlives its session."""
    key_hash = models.CharField(max_length=64)
    reason = models.CharField(max_length=500)
    from_seq = models.BigIntegerField(null=True)
    to_seq = models.BigIntegerField(null=True)
    counts = models.JSONField(default=dict)
    created_at = MomentField(db_default=DatabaseNow())
    mac = models.CharField(max_length=100, unique=True)
    """See services/audit/macs.py."""

    objects = PrimaryManager()

    class Meta:
        base_manager_name = "objects"
        verbose_name = _("audit entry")
        verbose_name_plural = _("audit entries")
        default_permissions = ()
        indexes = (
            models.Index(fields=["actor_id", "created_at"], name="chatmemory_audit_actor"),
            models.Index(fields=["action", "id"], name="chatmemory_audit_action"),
            models.Index(fields=["key_hash"], name="chatmemory_audit_key"),
            models.Index(fields=["created_at"], name="chatmemory_audit_time"),
            # PostgreSQL counts them in 2 ms, and in 92 without it.
            PartialIndex(fields=["id"], where=NO_READING, name="chatmemory_audit_no_reading"),
        )

    def __str__(self) -> str:
        subject = ""
        if self.session_pk is not None:
            subject = f" of conversation {self.session_pk}"
        elif self.key_hash:
            subject = " of a person"
        return f"{self.action}{subject} by {self.actor_label}"


class Reading(models.Model):
    """The ranges of a session that an operator reads in an hour, until an entry records them."""

    session_pk = models.BigIntegerField()
    actor_kind = models.CharField(max_length=16)
    actor_id = models.CharField(max_length=150)
    entry_pk = models.BigIntegerField()
    """The entry of the first page, whose time starts the hour."""
    ranges = models.JSONField()
    """[[from, to], …]: seqs, inclusive, ascending, never adjacent."""

    objects = PrimaryManager()

    class Meta:
        base_manager_name = "objects"
        verbose_name = _("reading")
        verbose_name_plural = _("readings")
        default_permissions = ()
        constraints = (
            models.UniqueConstraint(
                fields=["session_pk", "actor_kind", "actor_id"], name="chatmemory_reading_actor"
            ),
        )

    def __str__(self) -> str:
        return f"{self.actor_kind} {self.actor_id} reads conversation {self.session_pk}"


class AuditSeal(models.Model):
    """A link of the hash chain over the entries: changing an entry breaks all later links."""

    number = models.BigIntegerField(unique=True)
    entry_pk = models.BigIntegerField(unique=True)
    digest = models.CharField(max_length=64)
    created_at = MomentField(db_default=DatabaseNow())

    objects = PrimaryManager()

    class Meta:
        base_manager_name = "objects"
        verbose_name = _("audit seal")
        verbose_name_plural = _("audit seals")
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.number}:{self.digest}"
