"""Charts: shapes that state the values."""

from __future__ import annotations

from datetime import date, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatmemory.admin.reports.tables import Column, Table
from chatmemory.statistics.admin.charts import HEIGHT, WIDTH, Series, bar_chart, line_chart

TABLE = Table(name="t", title="T", columns=[Column("Day")], rows=[])


def days(count):
    return [date(2026, 1, 1) + timedelta(days=n) for n in range(count)]


@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)), min_size=1, max_size=20))
def test_bars_are_stacked_within_the_chart(values):
    series = [
        Series("a", "good", [a for a, _ in values]),
        Series("b", "bad", [b for _, b in values]),
    ]
    chart = bar_chart(TABLE, days(len(values)), series)
    assert len(chart.bars) == sum(bool(a) + bool(b) for a, b in values)
    for bar in chart.bars:
        assert 0 <= float(bar.x) <= float(bar.x) + float(bar.width) <= WIDTH + 0.01
        assert -0.01 <= float(bar.y) <= float(bar.y) + float(bar.height) <= HEIGHT + 0.02


def test_the_height_of_a_bar_is_its_value():
    chart = bar_chart(TABLE, days(2), [Series("a", "good", [5, 10]), Series("b", "bad", [5, 0])])
    assert [(bar.css, bar.y, bar.height) for bar in chart.bars] == [
        ("good", "50", "50"),
        ("bad", "0", "50"),
        ("good", "0", "100"),
    ]
    assert (chart.top, chart.first, chart.last) == ("10", "01/01/2026", "01/02/2026")
    assert chart.bars[0].title == "01/01/2026: a 5"


def test_a_day_without_a_value_interrupts_a_line():
    chart = line_chart(TABLE, days(4), [Series("a", "good", [500, 1000, None, 0])])
    [line] = chart.lines
    assert line.path == "M125 50 L375 0 M875 100"
    assert [title for _, _, title in line.dots] == [
        "01/01/2026: a 500 ms",
        "01/02/2026: a 1.0 s",
        "01/04/2026: a 0 ms",
    ]


@pytest.mark.parametrize("draw", [bar_chart, line_chart])
def test_a_period_without_values_is_an_empty_chart(draw):
    chart = draw(TABLE, days(1), [Series("a", "good", [None])])
    assert (list(chart.bars), [line.path for line in chart.lines]) in (([], []), ([], [""]))


@pytest.mark.parametrize(
    ("highest", "top"), [(0, "1"), (1, "1"), (7, "8"), (9, "10"), (11, "20"), (22_000, "30,000")]
)
def test_the_scale_ends_at_a_round_number(highest, top):
    assert bar_chart(TABLE, days(1), [Series("a", "good", [highest])]).top == top
