"""Notes of operators about a session."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from chatmemory.models.fields import DatabaseNow, MomentField
from chatmemory.models.managers import PrimaryManager
from chatmemory.models.sessions import Session

MAX_NOTE_CHARS = 2_000
MAX_NOTES = 100
"""Maximum number of notes of a session, so that a page can show all of them."""


class SessionNote(models.Model):
    """A note that operators read; users and models never see it."""

    session = models.ForeignKey(Session, on_delete=models.CASCADE, related_name="notes")
    text = models.TextField(_("text"))
    actor_kind = models.CharField(max_length=16)
    actor_id = models.CharField(max_length=150)
    actor_label = models.CharField(max_length=200)
    created_at = MomentField(_("created at"), db_default=DatabaseNow())

    objects = PrimaryManager()

    class Meta:
        base_manager_name = "objects"
        verbose_name = _("conversation note")
        verbose_name_plural = _("conversation notes")
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.actor_label} about conversation {self.session_id}"
