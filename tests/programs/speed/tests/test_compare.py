"""The comparison with other LangChain histories."""

from __future__ import annotations

import json

import pytest
from django.db import connection, connections

from tests.programs.peers import speed, speed_worker
from tests.programs.speed import run
from tests.programs.speed.__main__ import main
from tests.programs.speed.cases import BenchError, Scale, Setup
from tests.programs.speed.histories import WORK
from tests.programs.speed.units import UNITS


@pytest.fixture
def environments(monkeypatch, tmp_path):
    """The folder of the peers' environments, empty."""
    monkeypatch.setattr(speed, "ENVIRONMENTS", tmp_path)
    return tmp_path


def test_without_an_environment_it_names_the_command_that_creates_them(environments):
    with pytest.raises(BenchError, match="run `make peers` first"):
        speed.plans(Scale())


def test_each_installed_peer_is_compared_with_ours_for_each_work(environments):
    (environments / "langchain-postgres").mkdir()
    (environments / "langchain-postgres" / "made").touch()
    baselines = {plan.name: plan.baseline for plan in speed.plans(Scale())}
    assert baselines == {f"ours, {work}": None for work in WORK} | {
        f"langchain-postgres, {work}": f"ours, {work}" for work in WORK
    }
    assert set(speed.PEERS) == set(speed_worker.STORES)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("work", WORK)
def test_our_history_does_the_work_and_has_no_faults(work):
    case = speed.Ours(Setup(key="bench", index=0, scale=Scale()), work)
    case.prepare()
    case.call()
    assert case.count()["statements"] >= 1
    assert case.find_faults([2]) == []
    case.case.added += 1
    assert case.find_faults([2]) == ["the history differs from what was added"]


def test_peers_use_the_database_of_the_benchmark(monkeypatch):
    entry = {"USER": "ann", "PASSWORD": "a/b", "HOST": "db", "PORT": "", "NAME": "chatmemory_bench"}
    monkeypatch.setenv("CHATMEMORY_BENCH", json.dumps({"database": entry}))
    assert speed_worker.benchmark_url() == "postgresql://ann:a%2Fb@db:5432/chatmemory_bench"


def test_other_databases_than_postgresql_are_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(connection, "vendor", "sqlite")
    with pytest.raises(SystemExit, match="--compare needs PostgreSQL"):
        main(["--units=append", "--compare", f"--folder={tmp_path}"])


def test_a_unit_that_cannot_run_is_refused_before_the_others_run(environments, tmp_path):
    begun: list[str] = []
    with pytest.raises(BenchError, match="run `make peers` first"):
        run.run(
            {"append": UNITS["append"], "peers": run.COMPARE_MODULE},
            live=connections["default"],
            database="chatmemory_bench",
            folder=tmp_path,
            rounds=1,
            scale=Scale(),
            seed=1,
            report=begun.append,
        )
    assert begun == []
