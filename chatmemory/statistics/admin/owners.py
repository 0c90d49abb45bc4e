"""The busiest owners, from the sessions that the operator may see."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from django.contrib.auth import get_user_model
from django.db.models import QuerySet
from django.utils.translation import gettext as _

from chatmemory.admin.reports.tables import Column, Table, shown
from chatmemory.models import Session
from chatmemory.statistics.admin.period import Period

MAX_READ = 5_000
"""The most recently active sessions of the period that are read: the index on the day of activity
bounds the cost, whatever the number of sessions."""
MAX_OWNERS = 10


@dataclass(slots=True)
class _Sum:
    sessions: int = 0
    messages: int = 0
    tokens: int = 0


def busiest_owners(sessions: QuerySet[Session], period: Period) -> Table:
    """Return the owners with the most messages in sessions that were active in the period."""
    username = f"owner__{get_user_model().USERNAME_FIELD}"
    active = sessions.filter(last_active_day__range=(period.first, period.last))
    columns_read = (username, "scope", "last_seq", "tokens", "removed_at")
    found = active.order_by("-last_active_day").values_list(*columns_read)[:MAX_READ]
    sums: defaultdict[str, _Sum] = defaultdict(_Sum)
    for name, scope, messages, tokens, removed_at in found:
        if removed_at is not None:  # not in the query: it would read on past any number of them
            continue
        owner = sums[str(name) if name is not None else scope]
        owner.sessions += 1
        owner.messages += messages
        owner.tokens += tokens
    busiest = sorted(sums.items(), key=_by_messages)[:MAX_OWNERS]
    columns = [
        Column(_("Owner")),
        Column(_("Conversations"), "count"),
        Column(_("Messages"), "count"),
        Column(_("Tokens"), "count"),
    ]
    note = _(
        "All messages and tokens of the %(max)s conversations that were active last in the period; "
        "erased and deleted conversations are not in it."
    )
    return Table(
        name="owners",
        title=_("Busiest owners"),
        columns=columns,
        rows=[(name, one.sessions, one.messages, one.tokens) for name, one in busiest],
        note=note % {"max": shown(MAX_READ)},
    )


def _by_messages(item: tuple[Any, _Sum]) -> tuple[int, str]:
    return -item[1].messages, item[0]
