"""The figures of each day, and up to where rows are counted. None of them contains a person."""

from __future__ import annotations

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import models
from django.utils.translation import gettext_lazy as _

from chatmemory.models import KeyField
from chatmemory.models.managers import PrimaryManager

# Otherwise Django would add these models to the app `chatmemory`, which contains this package.
if not apps.is_installed("chatmemory.statistics"):
    raise ImproperlyConfigured("Add chatmemory.statistics to INSTALLED_APPS.")

# Note [Daily figures]
#
# A vacuum and an erasure delete rows, but not what they add up to. `roll_up_statistics` adds what
# is new since its last run to these tables, and a deletion adds what no run has counted. The row of
# `Watermark` states what is counted, and is the lock of all writes here. Days are in UTC. The
# figures are counts by day, model, status and error code, so an erasure leaves them unchanged.


class DailyTurns(models.Model):
    """The turns that ended on a day, by model, status and error. See Note [Daily figures]."""

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
    """A histogram of `Turn.first_text_ms`; see histograms.py."""
    duration = models.JSONField(default=dict)
    """A histogram of the milliseconds from the start of the run to its end."""

    objects = PrimaryManager()

    class Meta:
        base_manager_name = "objects"
        verbose_name = _("statistics")
        verbose_name_plural = _("statistics")
        default_permissions = ()
        permissions = (("view_statistics", _("Can view the statistics of all conversations")),)
        constraints = (
            models.UniqueConstraint(
                fields=["day", "model", "status", "error"],
                name="chatmemory_statistics_dailyturns_key",
            ),
        )

    def __str__(self) -> str:
        return f"{self.day}: {self.turns} {self.status}"


class DailyActivity(models.Model):
    """What was stored on a day. See Note [Daily figures]."""

    day = models.DateField(_("day"), unique=True)
    sessions = models.BigIntegerField(_("conversations"), db_default=0)
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


class Watermark(models.Model):
    """Which rows are counted, in one row. See Note [Watermark]."""

    marks = models.JSONField(default=dict)

    objects = PrimaryManager()

    class Meta:
        base_manager_name = "objects"
        verbose_name = _("watermark")
        verbose_name_plural = _("watermarks")
        default_permissions = ()

    def __str__(self) -> str:
        return "watermark"
