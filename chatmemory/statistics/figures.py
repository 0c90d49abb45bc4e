"""Read the daily figures of a period, added up for charts and tables."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from chatmemory.statistics.histograms import Histogram, added, quantile
from chatmemory.statistics.models import DailyActivity, DailyTurns


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """The median and the 95th percentile in milliseconds; None without any time."""

    median: int | None
    p95: int | None

    @classmethod
    def of(cls, histogram: Histogram) -> Times:
        return cls(median=quantile(histogram, 0.5), p95=quantile(histogram, 0.95))


@dataclass(frozen=True, slots=True, kw_only=True)
class DayFigures:
    """The figures of a day."""

    day: date
    sessions: int
    messages: int
    good: int
    bad: int
    by_status: Counter[str]
    first_text: Times
    duration: Times


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFigures:
    """The figures of a model in the period; its name is empty if no model reported one."""

    model: str
    turns: int
    tokens_in: int
    tokens_out: int
    first_text: Times
    duration: Times


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of a period, from the first day to the last one."""

    days: Sequence[DayFigures]
    models: Sequence[ModelFigures]
    """The model with the most tokens first."""
    failures: Sequence[tuple[str, int]]
    """Error codes and turns, the most frequent first."""
    by_status: Counter[str]
    first_text: Times
    duration: Times


def read_figures(first: date, last: date) -> Figures:
    """Read the figures of the days from `first` to `last`, in two statements."""
    turns = list(DailyTurns.objects.filter(day__range=(first, last)))
    activity = {row.day: row for row in DailyActivity.objects.filter(day__range=(first, last))}
    of_day: defaultdict[date, list[DailyTurns]] = defaultdict(list)
    of_model: defaultdict[str, list[DailyTurns]] = defaultdict(list)
    failures: Counter[str] = Counter()
    for row in turns:
        of_day[row.day].append(row)
        of_model[row.model].append(row)
        if row.error:
            failures[row.error] += row.turns
    days = [first + timedelta(days=n) for n in range((last - first).days + 1)]
    models = [_model(model, rows) for model, rows in of_model.items()]
    models.sort(key=lambda model: (-(model.tokens_in + model.tokens_out), -model.turns))
    return Figures(
        days=[_day_figures(day, activity.get(day), of_day[day]) for day in days],
        models=models,
        failures=failures.most_common(),
        by_status=_by_status(turns),
        first_text=_added_times("first_text", turns),
        duration=_added_times("duration", turns),
    )


def _day_figures(
    day: date, activity: DailyActivity | None, turns: Sequence[DailyTurns]
) -> DayFigures:
    stored = activity or DailyActivity(day=day, sessions=0, messages=0, good=0, bad=0)
    return DayFigures(
        day=day,
        sessions=stored.sessions,
        messages=stored.messages,
        good=stored.good,
        bad=stored.bad,
        by_status=_by_status(turns),
        first_text=_added_times("first_text", turns),
        duration=_added_times("duration", turns),
    )


def _model(model: str, turns: Sequence[DailyTurns]) -> ModelFigures:
    return ModelFigures(
        model=model,
        turns=sum(row.turns for row in turns),
        tokens_in=sum(row.tokens_in for row in turns),
        tokens_out=sum(row.tokens_out for row in turns),
        first_text=_added_times("first_text", turns),
        duration=_added_times("duration", turns),
    )


def _by_status(turns: Iterable[DailyTurns]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for row in turns:
        counts[row.status] += row.turns
    return counts


def _added_times(column: str, turns: Iterable[DailyTurns]) -> Times:
    return Times.of(added(*(getattr(row, column) for row in turns)))
