"""The base classes of cases that work on one session with a connection of this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.db import connection

from chatmemory import services
from chatmemory.models import Session
from tests.programs.speed.baselines import Baseline, open_baseline
from tests.programs.speed.cases import Case, Setup
from tests.programs.speed.counting import counted
from tests.programs.speed.meter import is_backend
from tests.programs.speed.texts import Batch, batch_of, batches_of, filled, find_faults, plain

AT: dict[str, Any] = {"by": services.Actor.server("bench"), "scope": services.SERVER}
"""The actor and the scope of all calls without a socket."""


class DatabaseCase(Case):
    """Works on the session with the key of its setup; `size` messages per call."""

    size = 2

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.address: dict[str, Any] = {"session_key": setup.key, **AT}
        self.number = 0
        """The number of the next call."""

    def prepare(self) -> None:
        services.open_session(**self.address)
        connection.ensure_connection()

    @property
    def session_pk(self) -> int:
        return Session.objects.get(key=self.setup.key).pk

    def next_batch(self) -> Batch:
        """Return the texts of this call."""
        self.number += 1
        return batch_of(self.setup.index, self.number - 1, self.size)

    def backend_pids(self) -> Sequence[int]:
        if connection.vendor != "postgresql":
            return ()
        pid: int = connection.connection.info.backend_pid
        return [pid] if is_backend(pid) else []

    def count(self) -> Mapping[str, int]:
        with counted() as counts:
            self.call()
        return counts

    def find_faults(self, calls: Sequence[int]) -> list[str]:
        return find_faults(self.setup.key, batches_of(calls, self.size), self.size)

    def close(self) -> None:
        connection.close()

    def fill(self, messages: int) -> None:
        """Store the messages that reads of this case find."""
        for batch in filled(messages):
            services.append_messages(**self.address, messages=plain(batch))


class BaselineCase(DatabaseCase):
    """Uses a connection of the driver."""

    def prepare(self) -> None:
        self.baseline: Baseline = open_baseline()
        super().prepare()
        connection.close()  # many writers would need two connections each

    def backend_pids(self) -> Sequence[int]:
        return [pid for pid in self.baseline.backend_pids() if is_backend(pid)]

    def count(self) -> Mapping[str, int]:
        return {}

    def close(self) -> None:
        self.baseline.close()
        super().close()


class BaselineAppend(BaselineCase):
    """F."""

    def call(self) -> None:
        self.baseline.append(self.setup.key, self.next_batch())


class Append(DatabaseCase):
    """Our append."""

    def call(self) -> None:
        services.append_messages(**self.address, messages=plain(self.next_batch()))
