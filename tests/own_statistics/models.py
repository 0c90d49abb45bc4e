"""A table of the host, with names that the optional app uses too."""

from __future__ import annotations

from django.db import models


class DailyTurns(models.Model):
    """A daily figure of the host."""

    turns = models.IntegerField()

    class Meta:
        permissions = (("view_statistics", "Can view the host's statistics"),)

    def __str__(self) -> str:
        return str(self.turns)
