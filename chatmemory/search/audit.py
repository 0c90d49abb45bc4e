"""The audit entry of an operator's search: counts, and a hash in place of the words."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from chatmemory.access.actors import Actor
from chatmemory.database.retries import retried
from chatmemory.models import AuditEntry
from chatmemory.services.audit.entries import Count, record_person
from chatmemory.services.audit.keys import key_hash, key_hashes


class Action(models.TextChoices):
    """What this app records in the audit."""

    SEARCH = "search", _("Words searched")


@retried(is_repeatable=False)
def record_search(
    *, by: Actor, reason: str, query: str, scope: str = "", **counts: Count
) -> AuditEntry:
    """Record that an operator searched words in messages.

    `scope` is that of the person whose conversations were searched, if it is one.
    Raises MemoryUnavailable.
    """
    hashed = key_hash(_hashed(query))
    return record_person(scope, Action.SEARCH, by, reason, **counts, query_hash=hashed)


def query_hashes(query: str) -> list[str]:
    """Return the hashes that an entry may have for these words, to verify a suspicion."""
    return key_hashes(_hashed(query))


def _hashed(query: str) -> str:
    # No key of a session and no scope contains a null character, so no hash is equal to theirs.
    return f"query\0{' '.join(query.casefold().split())}"
