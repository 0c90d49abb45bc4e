"""Who removed or read what, when and why; never the content."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from chatmemory.models.fields import DatabaseNow


class AuditEntry(models.Model):
    """One act, written in the same transaction. The actor is text, so it outlives the account."""

    actor_kind = models.CharField(max_length=16)
    actor_id = models.CharField(max_length=150)
    actor_label = models.CharField(max_length=200)
    action = models.CharField(max_length=16)
    session_pk = models.BigIntegerField(db_index=True)
    key_hash = models.CharField(max_length=64)
    reason = models.CharField(max_length=500)
    from_seq = models.BigIntegerField(null=True)
    to_seq = models.BigIntegerField(null=True)
    counts = models.JSONField(default=dict)
    created_at = models.DateTimeField(db_default=DatabaseNow())

    class Meta:
        verbose_name = _("audit entry")
        verbose_name_plural = _("audit entries")

    def __str__(self) -> str:
        return f"{self.action} of session {self.session_pk} by {self.actor_label}"
