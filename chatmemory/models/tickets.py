"""Tickets: single-use socket credentials for clients without cookies."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from chatmemory.models.fields import KeyField, MomentField
from chatmemory.models.managers import PrimaryManager


class Ticket(models.Model):
    """The right to open one websocket. Its use deletes the row, which contains no secret."""

    digest = models.CharField(max_length=64, unique=True)
    owner = KeyField(max_length=150, db_index=True)
    """The scope of the person, such as `user:7`: a primary key alone could be a visitor's."""
    proof = models.CharField(max_length=64)
    """Digest of the account's session hash at issue: a new password invalidates the ticket."""
    login = models.TextField()
    """Session key and credential of the requesting login, encrypted with the ticket."""
    expires_at = MomentField(db_index=True)

    objects = PrimaryManager()

    class Meta:
        base_manager_name = "objects"
        verbose_name = _("ticket")
        verbose_name_plural = _("tickets")
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.owner}, until {self.expires_at:%H:%M:%S}"
