"""The index of a search: the terms of the messages, in blocks."""

from __future__ import annotations

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import models
from django.utils.translation import gettext_lazy as _

from chatmemory.models import Session
from chatmemory.models.derived import DerivedRow

# Otherwise Django would add the model to the app `chatmemory`, which contains this package.
if not apps.is_installed("chatmemory.search"):
    raise ImproperlyConfigured("Add chatmemory.search to INSTALLED_APPS.")

# Note [Search blocks]
#
# A block has the terms of up to 128 messages with consecutive seqs: those of its number. It
# proposes hits, and each of them is read again before it is shown. So a message is found as soon as
# it is stored, with or without a block, and never after its removal.
# - A block is a derived row: see Note [Derived rows]. A redaction deletes it, a vacuum and an
#   erasure too. A trim, clear, purge or edit keeps it, since a restore shows its messages again; a
#   search leaves hidden messages out of it.
# - The indexer writes it with `derived.store`, so that no block has words that were removed while
#   it was made. Messages in no block, or in one of another analyzer, are analyzed by the search.
# - Blocks can be deleted at any time. A dump may contain them or not.

BLOCK_ROWS = 128
"""Consecutive seqs that share a block."""


class SearchBlock(DerivedRow):
    """The terms of the messages `low` to `high` of a session. See Note [Search blocks]."""

    session = models.ForeignKey(Session, on_delete=models.CASCADE, related_name="+", db_index=False)
    number = models.BigIntegerField()
    """`(low - 1) // 128`."""
    analyzer = models.CharField(max_length=32)
    """The name of the analyzer that made it."""
    postings = models.BinaryField()
    words = models.BinaryField()
    """See blocks.py."""

    class Meta(DerivedRow.Meta):
        permissions = (("search_content", _("Can search words in the messages of conversations")),)
        constraints = (
            models.UniqueConstraint(
                fields=["session", "number"], name="chatmemory_search_searchblock_number"
            ),
        )

    def __str__(self) -> str:
        return f"{self.low} to {self.high} of session {self.session_id}"


def number_of(seq: int) -> int:
    """Return the number of the block of a message."""
    return (seq - 1) // BLOCK_ROWS


def first_of(number: int) -> int:
    """Return the lowest seq of a block."""
    return number * BLOCK_ROWS + 1
