"""Visitors: persons without an account, whom a secret of their browser identifies."""

from __future__ import annotations

from django.db import models
from django.db.models import QuerySet
from django.utils.translation import gettext_lazy as _

from chatmemory.models.fields import DatabaseNow, DatabaseToday, KeyField, MomentField
from chatmemory.models.managers import PrimaryManager


class VisitorQuerySet(QuerySet["Visitor"]):
    """Queries of visitors."""

    def current(self) -> VisitorQuerySet:
        """Select the visitors whose credential is valid."""
        return self.filter(adopted_at__isnull=True, ends_at__gt=DatabaseNow())

    def ended(self) -> VisitorQuerySet:
        """Select the visitors whose time is over, adopted ones too."""
        return self.filter(ends_at__lte=DatabaseNow())


class Visitor(models.Model):
    """A person without an account. The row contains no secret, and locks the person's sessions.

    Opening a session and adopting all of them first lock this row.
    """

    digest = models.CharField(_("digest"), max_length=64, unique=True)
    """SHA-256 of the credential; the scope of the sessions is `visitor:<digest>`."""
    embed = KeyField(_("embed"), max_length=64, db_default="")
    """The key of the embed that created the visitor; empty for this site."""
    seen_day = models.DateField(_("last seen on"), db_default=DatabaseToday())
    ends_at = MomentField(_("ends at"), db_index=True)
    """When the credential ends. Each day with a request moves it, up to VISITOR_MAX_DAYS."""
    adopted_by = KeyField(_("adopted by"), max_length=150, db_default="", db_index=True)
    """The scope of the user who took over the sessions."""
    adopted_at = MomentField(_("adopted at"), null=True)
    moved = models.JSONField(default=dict)
    """The new key of each adopted session by its old key, for a repeated adoption."""
    created_at = MomentField(_("created at"), db_default=DatabaseNow())

    objects = PrimaryManager.from_queryset(VisitorQuerySet)()

    class Meta:
        base_manager_name = "objects"
        verbose_name = _("visitor")
        verbose_name_plural = _("visitors")
        default_permissions = ()

    def __str__(self) -> str:
        return f"visitor {self.digest[:8]}"

    @property
    def scope(self) -> str:
        """The scope of the visitor's sessions."""
        return f"visitor:{self.digest}"
