"""The benchmark never uses the live database."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.db import connection

from tests.programs.speed.cases import BenchError
from tests.programs.speed.databases import LARGE, SQLITE_FULL, Databases, check_name, require_own

LIVE = {
    "ENGINE": "django.db.backends.postgresql",
    "NAME": "shop",
    "USER": "ann",
    "PASSWORD": "secret",
    "HOST": "db",
    "PORT": "5432",
    "OPTIONS": {"sslmode": "require", "pool": {"max_size": 3}},
}


def test_a_name_without_the_prefix_is_refused():
    with pytest.raises(BenchError, match="must begin with chatmemory_bench, not be 'shop'"):
        check_name("shop", LIVE)


def test_a_live_database_with_a_name_of_the_benchmark_is_refused():
    with pytest.raises(BenchError, match="reserved"):
        check_name("chatmemory_bench_1", {**LIVE, "NAME": "chatmemory_bench"})
    with pytest.raises(BenchError, match="reserved"):
        check_name("chatmemory_bench", {"NAME": Path("/data/chatmemory_bench.sqlite3")})


@pytest.mark.database
@pytest.mark.django_db
def test_a_process_on_another_database_is_refused():
    with pytest.raises(BenchError, match="is not a database of the benchmark"):
        require_own(connection)


@pytest.mark.database
@pytest.mark.django_db
def test_the_name_that_the_server_reports_decides(monkeypatch):
    if connection.vendor == "sqlite":
        pytest.skip("the name is the file")
    monkeypatch.setitem(connection.settings_dict, "NAME", "chatmemory_bench")
    with pytest.raises(BenchError, match="is not a database of the benchmark"):
        require_own(connection)


def entry_of(databases, kind):
    environment = databases._environment(kind)
    return json.loads(environment["CHATMEMORY_BENCH"])["database"]


def test_entries_have_the_login_of_the_host_but_never_its_database(tmp_path):
    databases = Databases(LIVE, vendor="postgresql", name="chatmemory_bench", folder=tmp_path)
    entry = entry_of(databases, "default")
    assert entry["NAME"] == entry["TEST"]["NAME"] == "chatmemory_bench"
    assert entry_of(databases, LARGE)["NAME"] == "chatmemory_bench_large"
    assert (entry["USER"], entry["HOST"], entry["OPTIONS"]["sslmode"]) == ("ann", "db", "require")
    assert "pool" not in entry["OPTIONS"]


def test_sqlite_files_are_in_the_folder_of_the_run(tmp_path):
    live = {"NAME": "/data/db.sqlite3"}
    databases = Databases(live, vendor="sqlite", name="chatmemory_bench", folder=tmp_path)
    assert Path(entry_of(databases, "default")["NAME"]).parent == tmp_path
    full = entry_of(databases, SQLITE_FULL)
    assert full["OPTIONS"]["init_command"].endswith("synchronous=FULL")


def test_an_unknown_database_is_refused(tmp_path):
    with pytest.raises(BenchError, match="does not know the database oracle"):
        Databases(LIVE, vendor="oracle", name="chatmemory_bench", folder=tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("action", ["create", "drop"])
def test_the_database_of_other_settings_is_neither_created_nor_dropped(tmp_path, action):
    live = tmp_path / "db.sqlite3"
    live.write_bytes(b"")
    done = subprocess.run(  # noqa: S603  # our own command line
        [sys.executable, "-m", "tests.programs.speed.databases", action],
        env={**os.environ, "DATABASE_URL": f"sqlite:///{live}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "must begin with chatmemory_bench, not be 'db.sqlite3'" in done.stderr
    assert live.exists()


@pytest.mark.long
def test_a_process_refuses_a_foreign_database(tmp_path):
    databases = Databases({"NAME": "x"}, vendor="sqlite", name="chatmemory_bench", folder=tmp_path)
    environment = databases._environment("default")
    given = json.loads(environment["CHATMEMORY_BENCH"])
    given["database"]["NAME"] = str(tmp_path / "shop.sqlite3")
    done = subprocess.run(  # our own command line
        [
            sys.executable,
            "-m",
            "tests.programs.speed.worker",
            "tests.programs.speed.units.append",
            "F",
            "0",
            "{}",
        ],
        env={**environment, "CHATMEMORY_BENCH": json.dumps(given)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "shop.sqlite3 is not a database of the benchmark" in done.stderr
