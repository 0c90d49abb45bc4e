"""Withdrawn ranges: messages that no longer count, and that no newer version replaces."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from chatmemory.models.fields import DatabaseNow, MomentField
from chatmemory.models.managers import PrimaryManager
from chatmemory.models.sessions import Session


class WithdrawnRange(models.Model):
    """Messages of a session that were withdrawn. See Note [Withdrawn ranges]."""

    session = models.ForeignKey(
        Session, on_delete=models.CASCADE, related_name="withdrawn", db_index=False
    )
    low = models.BigIntegerField()
    high = models.BigIntegerField()
    emptied_to = models.BigIntegerField(null=True)
    """The highest seq whose content a vacuum has deleted; null while a restore is possible."""
    withdrawn_at = MomentField(db_default=DatabaseNow())

    objects = PrimaryManager()

    class Meta:
        base_manager_name = "objects"
        verbose_name = _("withdrawn range")
        verbose_name_plural = _("withdrawn ranges")
        default_permissions = ()
        constraints = (
            # In this order, since readers search the ranges that end at a seq or above.
            models.UniqueConstraint(
                fields=["session", "high", "low"], name="chatmemory_withdrawnrange_once"
            ),
            models.CheckConstraint(
                condition=Q(low__gte=1, low__lte=F("high")), name="chatmemory_withdrawnrange_order"
            ),
        )

    def __str__(self) -> str:
        return f"{self.low} to {self.high} of session {self.session_id}"
