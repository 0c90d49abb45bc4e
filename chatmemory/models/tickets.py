"""Tickets: how a client without cookies opens a websocket."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _


class Ticket(models.Model):
    """The right to open one websocket soon. The row goes when it is used; it is no key itself."""

    digest = models.CharField(max_length=64, unique=True)
    user_pk = models.CharField(max_length=150, db_index=True)
    proof = models.CharField(max_length=64)
    """Digest of the account's when it was issued: a new password makes it worth nothing."""
    expires_at = models.DateTimeField(db_index=True)

    class Meta:
        verbose_name = _("ticket")
        verbose_name_plural = _("tickets")

    def __str__(self) -> str:
        return f"user {self.user_pk}, until {self.expires_at:%H:%M:%S}"
