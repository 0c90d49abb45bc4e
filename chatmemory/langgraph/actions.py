"""The actions of the app in the audit."""

from __future__ import annotations

from django.db.models import TextChoices
from django.utils.translation import gettext_lazy as _


class ThreadAction(TextChoices):
    """What a saver removed or exported. The entries contain counts only."""

    DELETE = "delete_thread", _("Thread of a graph deleted")
    PRUNE = "prune_threads", _("Threads of graphs pruned")
    EXPORT = "export_threads", _("Threads of graphs exported")
