"""Rows to count, and what is counted."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

from django.db.models import F

from chatmemory import services
from chatmemory.database.faults import write_connection
from chatmemory.models import Feedback, Message, Session, Turn, database_now
from chatmemory.services.turns.progress import finish_turn
from chatmemory.statistics import watermark
from chatmemory.statistics.models import DailyActivity, DailyTurns, Watermark

DAY = date(2026, 3, 1)
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def add_turn(session: Session, **columns: Any) -> Turn:
    """Store an ended turn."""
    number = Turn.objects.count()
    given = {
        "client_id": f"c{number}",
        "status": "complete",
        "user_seq": number,
        "epoch": 1,
        "model": "m",
        "started_at": NOON,
        "ended_at": NOON + timedelta(seconds=2),
    }
    return Turn.objects.create(session=session, **{**given, **columns})


def counted() -> int:
    return sum(DailyTurns.objects.values_list("turns", flat=True))


def activity(column: str) -> int:
    return sum(DailyActivity.objects.values_list(column, flat=True))


def pass_time(minutes: float = 10) -> None:
    """Move what is stored back in time, with what the roll-up remembers."""
    ago = timedelta(minutes=minutes)
    Turn.objects.update(ended_at=F("ended_at") - ago)
    for model in (Message.stored, Session.objects, Feedback.objects):
        model.update(created_at=F("created_at") - ago)
    for row in Watermark.objects.all():
        turns = watermark.turns_until(row)
        marks: dict[str, Any] = {"turns": turns and (turns - ago).isoformat()}
        for name in ("messages", "sessions", "feedback"):
            mark = watermark.RowMark.read(row, name)
            assert mark is not None
            marks[name] = replace(mark, since=mark.since and mark.since - ago).as_json()
        watermark.move(row, **marks)


def later() -> datetime:
    """Return the time of the database, as a host without time zones has it too."""
    return database_now(write_connection())


def end_a_turn(**at: Any) -> None:
    claim = services.admit_turn(**at, client_id="c1", content="hi", owner="me").claim
    assert claim is not None
    assert finish_turn(claim=claim, status="complete", message={"role": "assistant", "content": ""})
