"""Each case of the units that need no server works in this process; counts are gated."""

from __future__ import annotations

from importlib import import_module

import pytest
from django.db import connection

from chatmemory.access.logins import Login, is_valid
from tests.factories import make_user
from tests.programs.speed import databases
from tests.programs.speed.cases import Scale, Setup
from tests.programs.speed.counting import counted
from tests.programs.speed.units import UNITS

SMALL = Scale(users=2, writers=2, history=200, long_history=200, small_rows=300, large_rows=600)
WITH_SERVERS = {"ws", "users", "connect"}
CASES = [
    pytest.param(plan, id=f"{name}-{plan.name}")
    for name, path in UNITS.items()
    if name not in WITH_SERVERS
    for plan in import_module(path).UNIT.plans(SMALL)
]


@pytest.fixture
def opened(transactional_db):
    """Make the process of a case; close it at the end."""
    cases = []

    def make(plan):
        cases.append(plan.make(Setup(key="bench", index=0, scale=SMALL)))
        cases[-1].prepare()
        return cases[-1]

    yield make
    for case in cases:
        case.close()


def plan_of(unit, name):
    plans = import_module(UNITS[unit]).UNIT.plans(SMALL)
    return next(plan for plan in plans if plan.name == name)


@pytest.mark.database
@pytest.mark.parametrize("plan", CASES)
def test_a_case_does_its_work_and_finds_no_faults(opened, plan):
    case = opened(plan)
    for _ in range(2):
        case.call()
    calls = 2 + bool(case.count())
    assert case.find_faults([calls]) == []


@pytest.mark.database
@pytest.mark.parametrize(
    ("unit", "name"), [("append", "F"), ("append", "append"), ("turn", "turn"), ("batch", "append")]
)
def test_a_case_that_stored_less_than_it_was_asked_to_is_found(opened, unit, name):
    case = opened(plan_of(unit, name))
    case.call()
    assert any("lost" in fault for fault in case.find_faults([2]))


@pytest.mark.parametrize(
    ("unit", "name"),
    [("page", "read_page"), ("window", "window"), ("load", "history 200"), ("load", "raw 200")],
)
def test_a_read_that_returns_too_few_messages_is_found(opened, monkeypatch, unit, name):
    case = opened(plan_of(unit, name))
    read = case.read
    monkeypatch.setattr(case, "read", lambda: read()[:-1])
    assert case.find_faults([0]) != []


def test_growth_measures_in_databases_without_messages_of_other_units():
    plans = import_module(UNITS["growth"]).UNIT.plans(SMALL)
    assert {plan.database for plan in plans} == {databases.SMALL, databases.LARGE}


# Goals of the counts, which load does not change: append 1 statement, turn 3; no compilation.
GATES = [
    ("append", "append", {"statements": 1, "as_sql": 0, "compile": 0}),
    ("batch", "append", {"statements": 1, "as_sql": 0, "compile": 0}),
    ("turn", "turn", {"statements": 3, "as_sql": 0, "compile": 0}),
    ("page", "read_page", {"statements": 1, "as_sql": 0, "compile": 0}),
    ("window", "window", {"statements": 1, "as_sql": 0, "compile": 0}),
    ("load", "history 200", {"statements": 1, "as_sql": 0, "compile": 0}),
]


@pytest.mark.database
@pytest.mark.parametrize(("unit", "name", "most"), GATES)
def test_counts_do_not_grow_on_postgresql(opened, postgresql, caplog, unit, name, most):
    caplog.set_level("WARNING", "chatmemory.turns")  # its line for each turn needs a statement
    case = opened(plan_of(unit, name))
    for _ in range(2):  # the second asks once whether a pooler is between
        case.call()
    counts = case.count()
    assert [(key, counts[key]) for key, number in most.items() if counts[key] > number] == []


@pytest.mark.database
@pytest.mark.django_db
def test_the_check_of_a_login_does_not_grow(postgresql):
    login = Login.of(make_user(), key="unknown")
    for _ in range(2):  # builds the statement, and prepares it
        is_valid(login)
    with counted() as counts:
        assert not is_valid(login)
    assert counts["statements"] == 1
    assert counts["as_sql"] == 0


def test_statements_and_parameters_are_counted(opened):
    counts = opened(plan_of("append", "append")).count()
    assert counts["statements"] == (1 if connection.vendor == "postgresql" else 3)
    assert counts["parameters"] > 5
    assert counts["characters"] > 500
