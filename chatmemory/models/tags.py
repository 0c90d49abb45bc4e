"""Tags, which the host and its operators add to sessions."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from chatmemory.models.fields import DatabaseNow, KeyField, MomentField
from chatmemory.models.managers import PrimaryManager
from chatmemory.models.sessions import Session

MAX_TAG_CHARS = 100


class SessionTag(models.Model):
    """A tag of a session, by which rules of `RETENTION` select. Clients cannot write it."""

    session = models.ForeignKey(
        Session, on_delete=models.CASCADE, related_name="tags", db_index=False
    )
    tag = KeyField(_("tag"), max_length=MAX_TAG_CHARS)
    created_at = MomentField(_("created at"), db_default=DatabaseNow())

    objects = PrimaryManager()

    class Meta:
        base_manager_name = "objects"
        verbose_name = _("conversation tag")
        verbose_name_plural = _("conversation tags")
        default_permissions = ()
        constraints = (
            models.UniqueConstraint(fields=["session", "tag"], name="chatmemory_sessiontag_once"),
        )
        indexes = (models.Index(fields=["tag"], name="chatmemory_sessiontag_tag"),)

    def __str__(self) -> str:
        return str(self.tag)
