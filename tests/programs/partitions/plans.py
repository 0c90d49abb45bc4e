"""Which partitions the statements of a connection touch, from the plans that were executed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper

from tests.programs.partitions.tables import PARTITIONS, TABLES

_NAMES = {f"{table}_{number}": table for table in TABLES for number in range(PARTITIONS)}
_BEGIN = (
    "LOAD 'auto_explain'",
    "SET auto_explain.log_min_duration = 0",
    "SET auto_explain.log_analyze = on",
    "SET auto_explain.log_format = json",
    "SET client_min_messages = log",
)
_END = ("RESET client_min_messages", "SET auto_explain.log_min_duration = -1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Executed:
    """A statement with a plan."""

    sql: str
    partitions: dict[str, int]
    """The number of partitions that were read or written, by table."""
    indexes: set[str]


@contextmanager
def executed_statements(connection: BaseDatabaseWrapper) -> Iterator[list[Executed]]:
    """Collect the statements of a connection. Needs a superuser and the module `auto_explain`."""
    found: list[Executed] = []

    def receive(notice: Any) -> None:
        _, separator, plan = notice.message_primary.partition("plan:\n")
        if separator:
            found.append(_read(json.loads(plan)))

    with connection.cursor() as cursor:
        for sql in _BEGIN:
            cursor.execute(sql)
    connection.connection.add_notice_handler(receive)
    try:
        yield found
    finally:
        connection.connection.remove_notice_handler(receive)
        with connection.cursor() as cursor:
            for sql in _END:
                cursor.execute(sql)


def _read(explained: dict[str, Any]) -> Executed:
    nodes = list(_nodes(explained["Plan"]))
    touched = {node.get("Relation Name") for node in nodes}
    tables = [_NAMES[name] for name in touched if name in _NAMES]
    return Executed(
        sql=explained["Query Text"],
        partitions={table: tables.count(table) for table in set(tables)},
        indexes={node["Index Name"] for node in nodes if "Index Name" in node},
    )


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the executed nodes of a plan, except those that write to the rows that others find."""
    if plan["Actual Loops"] == 0:
        return
    if plan["Node Type"] != "ModifyTable":
        yield plan
    for child in plan.get("Plans", ()):
        yield from _nodes(child)
