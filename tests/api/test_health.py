"""`health/`: 200 or 503 for monitors, without the database too, and at no cost in a flood."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from asgiref.sync import sync_to_async as db
from django.db import OperationalError, ProgrammingError, connection
from django.test import Client

from chatmemory import services
from chatmemory.database.pool import in_pool
from chatmemory.errors import MemoryUnavailable
from chatmemory.live.hub import hub
from chatmemory.models import DatabaseNow, Turn
from chatmemory.services.health import probes
from chatmemory.services.health import state as health
from chatmemory.services.health.probes import MAX_HANGING, Probe
from chatmemory.services.turns.stuck import count_stuck_turns
from tests.factories import TALK, make_session
from tests.live.test_shutdown import link_stalled, proxied
from tests.servers import DEADLINE, free_port, start_servers, wait_for

SECRET = "k" * 32
GOOD = {
    "status": "ok",
    "database": True,
    "channel_layer": True,
    "tables": True,
    "sweep_age": None,
    "overdue_turns": 0,
    "unclaimed_turns": 0,
}

serve = start_servers


@pytest.fixture
def secret(settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "HEALTH_TOKEN": SECRET}
    return {"authorization": f"Bearer {SECRET}"}


def health_of(headers=None):
    answer = Client().get("/api/health/", headers=headers)
    return answer.status_code, answer.json()


@pytest.mark.django_db
def test_everyone_sees_only_the_state(secret):
    assert health_of() == (200, {"status": "ok"})
    assert health_of({"authorization": "Basic eDp5"}) == (200, {"status": "ok"})
    answer = Client().head("/api/health/")
    assert (answer.status_code, answer["Cache-Control"]) == (200, "no-store")
    assert Client().post("/api/health/", {}, content_type="application/json").status_code == 405


@pytest.mark.django_db
def test_the_secret_opens_the_details(secret):
    assert health_of(secret) == (200, GOOD)


@pytest.mark.django_db
@pytest.mark.parametrize(
    "given", ["Bearer", "Bearer ", "bearer wrong", "Bearer é", f"Bearer {SECRET}x"]
)
def test_a_wrong_secret_is_refused(secret, given):
    answer = Client().get("/api/health/", headers={"authorization": given})
    assert (answer.status_code, answer["WWW-Authenticate"]) == (401, "Bearer")


@pytest.mark.django_db
def test_without_the_setting_no_secret_opens_the_details():
    for given in ("Bearer ", f"Bearer {SECRET}"):
        assert health_of({"authorization": given})[0] == 401


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"created_at": DatabaseNow() - timedelta(minutes=2)}, {"unclaimed_turns": 1}),
        (
            {"status": "running", "lease_until": DatabaseNow() - timedelta(minutes=2)},
            {"overdue_turns": 1},
        ),
    ],
)
def test_a_stuck_turn_is_unavailable(secret, columns, expected):
    make_session()
    services.admit_turn(**TALK, client_id="c1", content="hi")
    assert health_of() == (200, {"status": "ok"})
    Turn.objects.update(**columns)
    assert health_of() == (503, {"status": "unavailable"})
    assert health_of(secret) == (503, {**GOOD, "status": "unavailable", **expected})


@pytest.mark.slow
@pytest.mark.django_db
@pytest.mark.parametrize("fault", ["is_cut", "is_frozen"])
def test_an_unreachable_channel_layer_is_unavailable(secret, wire, fault):
    assert health_of(secret) == (200, GOOD)
    setattr(wire, fault, True)
    assert health_of(secret) == (503, {**GOOD, "status": "unavailable", "channel_layer": False})
    setattr(wire, fault, False)
    wait_for(lambda: health_of() == (200, {"status": "ok"}), "not available again")


@pytest.mark.django_db
def test_a_sweep_that_no_longer_succeeds_is_unavailable(secret, settings, monkeypatch):
    hub.sweep.enable()
    assert health_of(secret) == (200, GOOD)  # without threads nothing sweeps
    settings.CHATMEMORY = {**settings.CHATMEMORY, "DB_THREADS": 1}
    for probe in (health.stuck_turns, health.layer):  # a thread would not see the test's data
        monkeypatch.setattr(probe, "result", probe._call)
    status, state = health_of(secret)
    assert (status, 0 <= state["sweep_age"] < DEADLINE) == (200, True)
    hub.sweep._succeeded_at["_sweep_turns"] -= 61
    status, state = health_of(secret)
    assert (status, state["status"], state["sweep_age"] > 60) == (503, "unavailable", True)
    hub.sweep._succeeded_at.clear()  # as a shutdown does
    assert health_of(secret) == (200, GOOD)


@pytest.mark.django_db(transaction=True)
def test_a_flood_reads_the_database_once():
    calls = []

    def count():
        calls.append(1)
        return count_stuck_turns()

    probe = Probe(count)
    began = time.monotonic()
    results = [probe.result() for _ in range(100)]
    assert None not in results
    assert len(calls) <= 1 + time.monotonic() - began


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_hanging_probes_delay_no_later_request_and_use_few_threads(monkeypatch):
    go, calls = threading.Event(), []

    def hang():
        calls.append(1)
        go.wait(DEADLINE)
        return "done"

    monkeypatch.setattr(probes, "WAIT_SECONDS", 0.5)
    probe = Probe(hang)
    began = time.monotonic()
    assert [probe.result() for _ in range(100)] == [None] * 100
    assert time.monotonic() - began < DEADLINE  # only the first one waits, otherwise 50 s
    assert len(calls) == 1
    monkeypatch.setattr(probes, "WAIT_SECONDS", 0.0)
    monkeypatch.setattr(probes, "HANG_SECONDS", 0)
    assert [probe.result() for _ in range(100)] == [None] * 100
    wait_for(lambda: len(calls) == MAX_HANGING, "the probes have not begun")
    assert probe.result() is None
    assert len(calls) == len(probe._calls) == MAX_HANGING
    go.set()
    monkeypatch.setattr(probes, "WAIT_SECONDS", DEADLINE)
    monkeypatch.setattr(probes, "CACHE_SECONDS", 0)
    wait_for(lambda: probe.result() == "done", "the probe has not recovered")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("error", [MemoryUnavailable, OperationalError, ProgrammingError])
def test_a_probe_that_fails_has_no_result(error):
    def fail():
        raise error

    assert Probe(fail).result() is None


def asked(server):
    """Return the status and body of `health/`, which must come within the deadline."""
    try:
        with urlopen(f"{server.address}/api/health/", timeout=DEADLINE) as answer:  # noqa: S310
            return answer.status, answer.read()
    except HTTPError as error:
        return error.code, error.read()


aasked = db(asked, thread_sensitive=False)


@pytest.mark.slow
@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has no server")
async def test_a_server_whose_database_hangs_answers_and_recovers(serve):
    async with proxied() as (proxy, env):
        [server] = await db(serve)(env=env)
        assert await aasked(server) == (200, b'{"status":"ok"}')
        async with link_stalled(proxy):
            await eventually_asked(server, (503, b'{"status":"unavailable"}'))
        await eventually_asked(server, (200, b'{"status":"ok"}'))


async def eventually_asked(server, expected):
    await in_pool(lambda: wait_for(lambda: asked(server) == expected, "another state"))()


@pytest.mark.slow
def test_a_server_without_a_database_answers(serve, tmp_path):
    missing = {
        "sqlite": f"sqlite:///{tmp_path}/no/such/folder/file.sqlite3",
        "postgresql": f"postgres://postgres@127.0.0.1:{free_port()}/none",
        "mysql": f"mysql://root@127.0.0.1:{free_port()}/none",
    }
    [server] = serve(env={"DATABASE_URL": missing[connection.vendor]})
    assert asked(server) == (503, b'{"status":"unavailable"}')
