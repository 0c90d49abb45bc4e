"""A model of derived rows that a removal could not empty, clean up or move is an error."""

from __future__ import annotations

import pytest
from django.db import models
from django.test.utils import isolate_apps, override_settings

from chatmemory.checks import derived as checks
from chatmemory.checks.project import check_routers
from chatmemory.derived import DerivedFileRow, DerivedPersonRow, DerivedRow, register


@pytest.fixture
def messages_of(monkeypatch):
    """Return the messages about one model."""

    def check(model):
        is_person = issubclass(model, DerivedPersonRow)
        monkeypatch.setattr(checks, "range_models", lambda: [] if is_person else [model])
        monkeypatch.setattr(checks, "person_models", lambda: [model] if is_person else [])
        return [(found.id, found.msg) for found in checks.check_derived_models(None)]

    return check


def test_the_models_of_the_shop_have_no_message(shop):
    assert checks.check_derived_models(None) == []


@isolate_apps("chatmemory")
def test_an_exported_row_needs_its_values(messages_of):
    class Block(DerivedRow):
        exported = True
        when_hidden = "forget"

        class Meta:
            app_label = "chatmemory"

    assert messages_of(Block) == [
        ("chatmemory.E023", "chatmemory.Block must have a when_hidden of keep or delete."),
        ("chatmemory.E023", "chatmemory.Block is exported, and must define as_export()."),
    ]


@isolate_apps("chatmemory")
def test_a_tombstone_can_be_emptied_and_cleaned_up(messages_of):
    class File(DerivedFileRow):
        needed = ("path",)
        size = models.IntegerField()
        created_at = models.DateTimeField()
        number = models.IntegerField(unique=True, default=0)

        class Meta:
            app_label = "chatmemory"

    assert [message for _, message in messages_of(File)] == [
        "chatmemory.File must define clean_up(), which deletes what its tombstones name.",
        "chatmemory.File must list size in needed, or allow null: a tombstone cannot empty it.",
        "chatmemory.File must list created_at in needed, or allow null: a tombstone cannot empty"
        " it.",
        "chatmemory.File must list one of number in needed: all tombstones have the same.",
        "chatmemory.File has no field path, which needed lists.",
    ]


@isolate_apps("chatmemory")
@pytest.mark.parametrize("is_constraint", [False, True])
def test_a_unique_scope_needs_an_adoption_of_its_own(messages_of, is_constraint):
    class Fact(DerivedPersonRow):
        if not is_constraint:
            scope = models.CharField(max_length=150, unique=True)

        class Meta:
            app_label = "chatmemory"
            constraints = (
                [models.UniqueConstraint(fields=["scope"], name="one")] if is_constraint else []
            )

    message = "has a unique scope, and must define adopt(), for a person who has rows of both."
    assert messages_of(Fact) == [("chatmemory.E023", f"chatmemory.Fact {message}")]

    class Moved(Fact):
        @classmethod
        def adopt(cls, visitor, user):
            cls.objects.filter(scope=visitor).delete()

        class Meta(Fact.Meta):
            app_label = "chatmemory"

    assert messages_of(Moved) == []


@pytest.mark.django_db
def test_derived_rows_are_in_the_database_of_the_sessions(shop):
    with override_settings(DATABASE_ROUTERS=[ElsewhereRouter()]):
        (found,) = check_routers(None)
    assert found.id == "chatmemory.E013"
    assert "shop.Summary to elsewhere" in found.msg
    assert "shop.Order to elsewhere" in found.msg


class ElsewhereRouter:
    """Sends the shop to another database."""

    def db_for_write(self, model, **hints):
        return "elsewhere" if model._meta.app_label == "shop" else None


@pytest.mark.django_db
def test_only_a_foreign_key_to_a_session_is_registered(shop):
    with pytest.raises(ValueError, match=r"^shop.Order.item is no foreign key to chatmemory"):
        register(shop.Order, session="item")
    with pytest.raises(ValueError, match=r"^shop.Order.nothing is no foreign key to chatmemory"):
        register(shop.Order, session="nothing")
    register(shop.Order, session="chat")  # again, as by a second ready()
    with pytest.raises(ValueError, match=r"^shop.Summary.low is no foreign key"):
        register(shop.Summary, session="low")
