"""Sessions, texts and queries with which the pages of the admin are requested."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.contrib.auth import get_user_model
from django.db.models import F, Model

from chatmemory.models import Job, Message, Session
from chatmemory.services.jobs.actions import ACTIONS
from tests.programs.benchmarks.console.columns import OPERATOR_PREFIX, TAGS
from tests.programs.benchmarks.console.plan import MODELS
from tests.programs.benchmarks.console.rows import USER_PREFIX

ABSENT = "console-no-match"
"""A text that occurs nowhere."""
SELECTED = 100
"""The number of sessions that an operator selects in the list."""
Query = dict[str, Any]
PREVIEW: dict[str, str | int] = {
    "limit": "keep_turns",
    "value": "2",
    "tag": TAGS[0],
    "preview": "1",
}
"""The form of an action, which changes nothing."""
TABLES = {
    "statistics_dailyturns_csv": ("turns", "models", "failures", "owners"),
    "maintenance_csv": ("storage", "maintenance"),
}
"""Tables of pages, as CSV."""


@dataclass(frozen=True, slots=True)
class Examples:
    """Examples from the data of `create`."""

    sessions: dict[str, Session]
    """By what is special about them."""
    user: Any
    """The user with the most sessions."""
    selected: list[int]
    """Primary keys of sessions of usual lengths."""
    job: Job
    """The job with the most sessions."""

    @classmethod
    def read(cls) -> Examples:
        """Read them from the database."""
        found = Session.objects.order_by("pk")
        special = {
            "largest": found.order_by("-last_seq"),
            "usual": found.filter(last_seq__range=(4, 60), owner__isnull=False).exclude(title=""),
            "running": found.filter(running__isnull=False),
            "waiting": found.filter(waiting__gt=0),
            "trimmed": found.filter(first_seq__gt=1, first_seq__lte=F("last_seq")),
            "purged": found.filter(removed_at__isnull=False),
            "visitor's": found.filter(scope__startswith="visitor:"),
        }
        sessions = {name: rows[0] for name, rows in special.items()}
        users = get_user_model()._default_manager
        newest = found.filter(removed_at__isnull=True, last_seq__gt=4).order_by("-pk")
        return cls(
            sessions=sessions,
            user=users.get_by_natural_key(f"{USER_PREFIX}1"),
            selected=list(newest.values_list("pk", flat=True)[:SELECTED]),
            job=Job.objects.order_by("-total")[0],
        )

    @property
    def largest(self) -> Session:
        return self.sessions["largest"]

    def arguments(self, route: str, model: type[Model]) -> dict[str, dict[str, Any]]:
        """Return values for the parameters of a URL, by what is special about them."""
        match route:
            case "session_action":
                return {action: {"action": action} for action in ACTIONS}
            case "statistics_dailyturns_csv" | "maintenance_csv":
                return {table: {"table": table} for table in TABLES[route]}
            case "job_change" | "job_undo":
                return {"largest": {"pk": self.job.pk}}
            case "session_redact_turn":
                waiting = self.sessions["waiting"]
                turn = waiting.turns.waiting().first()
                return {"waiting": {"pk": waiting.pk, "turn": turn.pk if turn else 0}}
        rows = self._rows(model)
        if route in ("session_redact", "session_message"):
            del rows["purged"]  # has no such page if it has no message
        return {
            name: {"object_id": row.pk, "pk": row.pk, "seq": getattr(row, "last_seq", 0)}
            for name, row in rows.items()
        }

    def _rows(self, model: type[Model]) -> dict[str, Any]:
        if model is Session:
            return dict(self.sessions)
        if model is Message:
            return {"newest": self.largest.messages.order_by("-seq")[0]}
        newest = model._default_manager.order_by("-pk").first()
        return {} if newest is None else {"newest": newest}

    def terms(self) -> dict[str, str]:
        """Return texts for a search field."""
        usual, user = self.sessions["usual"], self.user
        return {
            "key": usual.key,
            "start of a key": usual.key[:6],
            "title": usual.title,
            "word of many titles": "invoice",
            "number": str(usual.pk),
            "username": user.get_username(),
            "start of many usernames": USER_PREFIX,
            "e-mail address": f"{USER_PREFIX}2@example.com",
            "scope": usual.scope,
            "visitor": self.sessions["visitor's"].scope,
            "reason": "Legal hold",
            "no match": ABSENT,
        }

    def text(self, parameter: str) -> str | None:
        """Return a text for a filter with an input field; None if this module knows none."""
        day = (datetime.now(UTC) - timedelta(days=10)).date().isoformat()
        return {
            "by": f"{OPERATOR_PREFIX}1",
            "session_pk": str(self.largest.pk),
            "person": f"user:{self.user.pk}",
            "from": day,
            "until": day,
            "owner_is": self.user.get_username(),
            "tag": TAGS[0],
            "model": MODELS[0],
        }.get(parameter)

    def queries(self, route: str) -> dict[str, Query]:
        """Return the queries with which to request a page, by what they ask for."""
        middle = self.largest.last_seq // 2
        person = {"scope": f"user:{self.user.pk}"}
        match route:
            case "session_change":
                return {
                    "": {},
                    "oldest": {"after": 0},
                    "middle": {"before": middle},
                    "middle, later": {"after": middle},
                    "with removed": {"removed": 1},
                    "with a message": {"seq": middle},
                    "to a date": {"jump": self.largest.created_at.date().isoformat()},
                }
            case "session_search":
                return {"": {}, "word": {"q": "invoice"}, "no match": {"q": ABSENT}}
            case "session_action" | "session_export":
                return {
                    "100": {"session": self.selected},
                    "100, preview": {"session": self.selected},
                    "largest": {"session": self.largest.pk},
                    "all": {"all": 1},
                    "all archived": {"all": 1, "state": "archived"},
                }
            case "job_change":
                return {
                    "": {},
                    "middle": {"after": self.selected[0] // 2},
                    "unchanged": {"outcome": "unchanged"},
                }
            case "statistics_dailyturns_changelist":
                return {"": {}, "year": {"days": 365}}
            case "session_people":
                return {"": {}, **{name: {"q": term} for name, term in self.terms().items()}}
            case "session_person" | "session_person_export" | "session_person_erase":
                return {"busiest": person, "visitor": {"scope": self.sessions["visitor's"].scope}}
            case _:
                return {"": {}}
