"""The core's checks of tables include those of the app."""

from __future__ import annotations

import pytest
from django.db.models import Model

from chatmemory.checks.project import check_routers
from chatmemory.models import installed_models
from chatmemory.services.integrity.tables import wrong_tables
from chatmemory.statistics.models import DailyActivity, DailyTurns, Watermark


class Elsewhere:
    """A router that sends the writes of this app to another database."""

    def db_for_write(self, model: type[Model], **_: object) -> str | None:
        return "other" if model._meta.app_label == "chatmemory_statistics" else None


def test_the_tables_are_among_the_installed_ones():
    assert {DailyActivity, DailyTurns, Watermark} < {*installed_models()}


def test_tables_in_another_database_are_an_error(settings):
    settings.DATABASE_ROUTERS = [Elsewhere()]
    [message] = check_routers(None)
    assert (message.id, "chatmemory_statistics.DailyTurns to other" in message.msg) == (
        "chatmemory.E013",
        True,
    )


@pytest.mark.django_db
@pytest.mark.database
def test_a_missing_table_is_reported(monkeypatch):
    monkeypatch.setattr(Watermark._meta, "db_table", "missing")
    assert wrong_tables() == ["Table missing is missing."]
