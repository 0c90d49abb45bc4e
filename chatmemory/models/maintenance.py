"""When maintenance last ran."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from chatmemory.models.fields import MomentField
from chatmemory.models.managers import PrimaryManager


class Maintenance(models.Model):
    """When a maintenance task last ran, and its result."""

    class Task(models.TextChoices):
        """The tasks of the core; optional apps register theirs."""

        EXPIRE = "expire", _("expire")
        VACUUM = "vacuum", _("vacuum")
        VERIFY = "verify", _("verify the audit")
        SEAL = "seal", _("seal the audit")
        CHECK = "check", _("check the integrity")

    name = models.CharField(_("task"), max_length=32, unique=True)
    started_at = MomentField(_("started at"), null=True)
    ended_at = MomentField(_("ended at"), null=True)
    """Null while it runs, and if its process died."""
    succeeded_at = MomentField(_("succeeded at"), null=True)
    """The end of the last run without problems."""
    is_ok = models.BooleanField(_("without problems"), null=True)
    counts = models.JSONField(_("counts"), default=dict)

    objects = PrimaryManager()

    class Meta:
        base_manager_name = "objects"
        verbose_name = _("health")
        verbose_name_plural = _("health")
        default_permissions = ()

    def __str__(self) -> str:
        return self.name
