"""The bytes of a message on PostgreSQL, `python -m tests.programs.benchmarks.storage`."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection

from tests.programs.benchmarks import storage
from tests.programs.benchmarks.storage import HEX_ID, Case, measure

ROWS = 5_000
"""Sizes of this number of rows differ from those of a million by less than a hundredth."""

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("postgresql")]


def test_a_message_of_400_characters_needs_at_most_1_55_times_its_text():
    sizes = measure(Case(), ROWS)
    assert 1.4 < sizes.ratio <= 1.55
    assert 400 < sizes.columns["text"] < 405  # with the length


@pytest.mark.parametrize(
    "worse", [{"in_model_order": True}, {"is_index_full": True}, {"client_id": HEX_ID}]
)
def test_each_alternative_needs_more(worse: dict[str, Any]):
    assert measure(Case(**worse), ROWS).ratio > measure(Case(), ROWS).ratio + 0.01


def test_the_benchmark_leaves_no_table(capsys):
    storage.main(100)
    assert "with short ids too" in capsys.readouterr().out
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_namespace WHERE nspname = %s", [storage.SCHEMA])
        assert cursor.fetchone() == (0,)
