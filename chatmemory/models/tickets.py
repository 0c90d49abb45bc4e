"""Tickets: how a client without cookies opens a websocket."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from chatmemory.models.managers import PrimaryManager


class Ticket(models.Model):
    """The right to open one websocket soon. Its use deletes the row, which holds no secret."""

    digest = models.CharField(max_length=64, unique=True)
    user_pk = models.CharField(max_length=150, db_index=True)
    proof = models.CharField(max_length=64)
    """Digest of the account's at the issue: a new password makes the ticket invalid."""
    login = models.TextField()
    """Session key and credential of the login that asked for it, encrypted with the ticket."""
    expires_at = models.DateTimeField(db_index=True)

    objects = PrimaryManager()

    class Meta:
        base_manager_name = "objects"
        verbose_name = _("ticket")
        verbose_name_plural = _("tickets")

    def __str__(self) -> str:
        return f"user {self.user_pk}, until {self.expires_at:%H:%M:%S}"
