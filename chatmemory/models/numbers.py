"""Numbers of each day, and when maintenance last ran. None of them contains a person."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from chatmemory.models.fields import KeyField, MomentField
from chatmemory.models.managers import PrimaryManager

# Note [Daily numbers]
#
# A trim and a vacuum delete turns and messages, but not what they add up to. `roll_up_numbers` adds
# what is new since its last run to these tables, behind a watermark in the row `numbers` of
# `Maintenance`. That row is the lock of all writes here. Days are those of UTC. The numbers are
# counts by day, model, status and error code, so an erasure leaves them unchanged.


class DailyTurns(models.Model):
    """The turns that ended on a day, by model, status and error. See Note [Daily numbers]."""

    day = models.DateField(_("day"))
    # Compared byte by byte, since Python adds the rows up by these texts.
    model = KeyField(_("model"), max_length=100)
    status = KeyField(_("status"), max_length=12)
    error = KeyField(_("error"), max_length=32)
    turns = models.BigIntegerField(_("turns"))
    tokens_in = models.BigIntegerField(_("tokens in"))
    """Tokens of the input, where the model reports them."""
    tokens_out = models.BigIntegerField(_("tokens out"))
    first_text = models.JSONField(default=dict)
    """A histogram of `Turn.first_text_ms`; see services/numbers/histograms.py."""
    duration = models.JSONField(default=dict)
    """A histogram of the milliseconds from the start of the run to its end."""

    objects = PrimaryManager()

    class Meta:
        base_manager_name = "objects"
        verbose_name = _("numbers")
        verbose_name_plural = _("numbers")
        default_permissions = ()
        constraints = (
            models.UniqueConstraint(
                fields=["day", "model", "status", "error"], name="chatmemory_dailyturns_key"
            ),
        )

    def __str__(self) -> str:
        return f"{self.day}: {self.turns} {self.status}"


class DailyActivity(models.Model):
    """What was stored on a day. See Note [Daily numbers]."""

    day = models.DateField(_("day"), unique=True)
    sessions = models.BigIntegerField(_("sessions"), db_default=0)
    messages = models.BigIntegerField(_("messages"), db_default=0)
    good = models.BigIntegerField(_("good"), db_default=0)
    bad = models.BigIntegerField(_("bad"), db_default=0)

    objects = PrimaryManager()

    class Meta:
        base_manager_name = "objects"
        verbose_name = _("activity of a day")
        verbose_name_plural = _("activity of days")
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.day}: {self.messages} messages"


class Maintenance(models.Model):
    """When a maintenance task last ran, and its result."""

    class Task(models.TextChoices):
        EXPIRE = "expire", _("expire")
        VACUUM = "vacuum", _("vacuum")
        VERIFY = "verify", _("verify the audit")
        SEAL = "seal", _("seal the audit")
        CHECK = "check", _("check the integrity")
        NUMBERS = "numbers", _("daily numbers")

    name = models.CharField(_("task"), max_length=20, choices=Task.choices, unique=True)
    started_at = MomentField(_("started at"), null=True)
    ended_at = MomentField(_("ended at"), null=True)
    """Null while it runs, and if its process died."""
    succeeded_at = MomentField(_("succeeded at"), null=True)
    """The end of the last run without problems."""
    is_ok = models.BooleanField(_("without problems"), null=True)
    counts = models.JSONField(_("counts"), default=dict)
    watermark = models.JSONField(default=dict)
    """What the task has processed; used by the daily numbers alone."""

    objects = PrimaryManager()

    class Meta:
        base_manager_name = "objects"
        verbose_name = _("health")
        verbose_name_plural = _("health")
        default_permissions = ()

    def __str__(self) -> str:
        return self.name
