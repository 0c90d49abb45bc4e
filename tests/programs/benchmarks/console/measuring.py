"""Request each page several times, and print its statements and their time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.test import Client

from tests.programs.benchmarks.console.examples import Examples
from tests.programs.benchmarks.console.meter import Statement, explain, metered
from tests.programs.benchmarks.console.pages import Target, find_targets

MAX_STATEMENTS = 12
MAX_MS = 150.0
RUNS = 6
NAME = "console-measure"
"""The operator who requests the pages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The cost of a page."""

    name: str
    status: int
    """Of the response; 0 without an example."""
    statements: int
    """The most in one request: the first of an hour also records that the operator read."""
    ms: float
    """The sum of the times of the statements, in the fastest request."""
    slowest: Statement | None
    """Of that request."""

    @property
    def verdict(self) -> str:
        if self.status not in (200, 302):
            return f"STATUS {self.status}" if self.status else "NO EXAMPLE"
        limits = {
            f"over {MAX_STATEMENTS} statements": self.statements > MAX_STATEMENTS,
            f"over {MAX_MS:.0f} ms": self.ms > MAX_MS,
        }
        return ", ".join(text for text, is_over in limits.items() if is_over) or "OK"

    def __str__(self) -> str:
        return f"{self.name[:76]:<77}{self.statements:>5}{self.ms:>10.1f}  {self.verdict}"


def operator_client() -> Client:
    """Return a client in which an operator with all permissions is logged in."""
    users = get_user_model()
    user, _ = users._default_manager.get_or_create(
        **{users.USERNAME_FIELD: NAME}, defaults={"is_staff": True}
    )
    user.user_permissions.set(Permission.objects.all())
    client = Client(SERVER_NAME="localhost")
    client.force_login(user)
    return client


def measure_all(*, only: str = "", runs: int = RUNS) -> Iterator[Measured]:
    """Measure each page whose name contains `only`. Needs the data of `create`."""
    client = operator_client()
    for target in find_targets(client, Examples.read()):
        if only in target.name:
            yield measure(client, target, runs)


def measure(client: Client, target: Target, runs: int) -> Measured:
    """Request a page; a file only to its first part."""
    if target.url is None:
        return Measured(name=target.name, status=0, statements=0, ms=0, slowest=None)
    status, costs = 0, []
    for _ in range(runs):
        with metered() as statements:
            response: Any = _request(client, target.url, target.data)
            if response.streaming:
                next(iter(response), None)
        status = response.status_code
        costs.append((sum(one.ms for one in statements), statements))
    ms, fastest = min(costs, key=lambda cost: cost[0])
    return Measured(
        name=target.name,
        status=status,
        statements=max(len(statements) for _, statements in costs),
        ms=ms,
        slowest=max(fastest, key=lambda one: one.ms, default=None),
    )


def _request(client: Client, url: str, data: dict[str, str | int] | None) -> Any:
    return client.get(url) if data is None else client.post(url, data)


def print_all(write: Callable[[str], object], *, only: str, runs: int, with_plans: bool) -> int:
    """Print a line for each page, and the plans of slow statements; return the pages not OK."""
    write(f"{'page':<77}{'stmts':>5}{'SQL ms':>10}\n")
    over = []
    for found in measure_all(only=only, runs=runs):
        write(f"{found}\n")
        if found.verdict != "OK":
            over.append(found)
    for found in over if with_plans else ():
        if found.slowest is not None:
            slow = found.slowest
            write(f"\n{found.name}\n{slow.ms:.1f} ms: {slow.sql}\n{slow.params}\n{explain(slow)}\n")
    write(f"\n{len(over)} pages are not OK.\n")
    return len(over)
