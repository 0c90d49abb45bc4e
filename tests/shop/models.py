from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db import models

from chatmemory.derived import DerivedFileRow, DerivedPersonRow, DerivedRow
from chatmemory.models import Session
from chatmemory.models.derived import DerivedManager, DerivedQuerySet

FILES: set[str] = set()
"""The names of the files that attachments have."""

CANCELLED = "cancelled"


class Summary(DerivedRow):
    """Kept while its messages are hidden, and exported."""

    exported = True

    text = models.TextField()

    def as_export(self) -> dict[str, Any]:
        return {"text": self.text}


class ShownBlocks(DerivedManager):
    """Hides rows, as a host's own manager may."""

    def get_queryset(self) -> DerivedQuerySet:
        return super().get_queryset().exclude(words=CANCELLED)


class SearchBlock(DerivedRow):
    """Deleted as soon as its messages are hidden."""

    when_hidden = "delete"

    words = models.TextField()

    objects = ShownBlocks()


class Figure(DerivedRow):
    """Contains no words, so it outlives a redaction."""

    contains_words = False

    length = models.IntegerField()


class Attachment(DerivedFileRow):
    """Names a file, which `clean_up` deletes."""

    needed = ("file",)

    file = models.CharField(max_length=100)
    caption = models.TextField(default="")

    @classmethod
    def clean_up(cls) -> None:
        for tombstone in cls.tombstones():
            FILES.discard(tombstone.file)
            tombstone.delete()


class Fact(DerivedPersonRow):
    """What a bot learned about a person."""

    text = models.TextField()


class VisibleOrders(models.Manager["Order"]):
    """Hides what the shop has cancelled, as a host's own manager may."""

    def get_queryset(self) -> models.QuerySet[Order]:
        return super().get_queryset().exclude(item=CANCELLED)


class Order(models.Model):
    """An order of the shop, given in a chat."""

    chat = models.ForeignKey(Session, on_delete=models.PROTECT, related_name="+")
    item = models.CharField(max_length=100)

    objects = VisibleOrders()

    def __str__(self) -> str:
        return self.item

    @property
    def customer(self) -> object:
        return self.chat.owner


class Purchase(models.Model):
    """An order that no chat belongs to."""

    customer = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="+")
    item = models.CharField(max_length=100)

    def __str__(self) -> str:
        return self.item
