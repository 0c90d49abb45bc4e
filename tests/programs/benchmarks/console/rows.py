"""Insert users, sessions, messages, turns and what belongs to them, by the plan."""

from __future__ import annotations

from datetime import datetime

from django.contrib.auth import get_user_model

from chatmemory.models import (
    Feedback,
    Job,
    JobItem,
    Message,
    Session,
    SessionNote,
    SessionTag,
    Turn,
)
from tests.programs.benchmarks.console import columns, texts
from tests.programs.benchmarks.console.columns import OPERATOR_PREFIX, TAGS
from tests.programs.benchmarks.console.inserts import insert_select
from tests.programs.benchmarks.console.sizes import Size

USER_PREFIX = "console-user-"
# In the order of their times, as in a table that grows.
_STORED = "(SELECT * FROM console_row WHERE seq >= stored_from ORDER BY created_at OFFSET 0) AS r"
_NUMBER = {"number": texts.NUMBER}


def add_users(size: Size) -> None:
    """Insert users, half of them with e-mail addresses, and operators. None can log in."""
    model = get_user_model()
    email = "CASE WHEN mod(number, 2) = 0 THEN %(prefix)s || number || '@example.com' ELSE '' END"
    for prefix, count in ((USER_PREFIX, size.users), (OPERATOR_PREFIX, size.operators)):
        values = {
            model.USERNAME_FIELD: "%(prefix)s || number",
            model.EMAIL_FIELD: email,
            "password": "'!'",
            "is_staff": "%(is_staff)s",
        }
        params = {"prefix": prefix, "count": count, "is_staff": prefix == OPERATOR_PREFIX}
        insert_select(model, values, "generate_series(1, %(count)s) AS number", **params)


def add_sessions(now: datetime) -> None:
    """Insert a session for each row of the plan."""
    source = "(SELECT * FROM console_plan ORDER BY number) AS p"
    insert_select(Session, columns.SESSION, source, sentences=texts.SENTENCES, now=now)


def add_messages() -> None:
    """Insert the messages."""
    insert_select(
        Message,
        columns.MESSAGE,
        _STORED,
        sentences=texts.SENTENCES,
        answers=texts.ANSWERS,
        result_text=texts.RESULT_TEXT,
        call=texts.CALL,
        result=texts.RESULT,
        **_NUMBER,
    )


def add_turns(now: datetime) -> None:
    """Insert ended and running turns, then waiting and cancelled ones."""
    source = f"{_STORED} WHERE seq = turn"
    given = {"now": now, "partial": texts.ANSWERS[0], "usage": texts.USAGE}
    insert_select(Turn, columns.TURN, source, **given)
    behind = "console_plan, generate_series(1, 2) AS ahead WHERE is_running AND mod(number, 2) = 0"
    insert_select(Turn, columns.WAITING_TURN, behind, now=now, asked=texts.ASKED, **_NUMBER)
    some = "console_plan WHERE mod(number, 37) = 0 AND last_seq > 1 AND NOT is_running"
    insert_select(Turn, columns.CANCELLED_TURN, some)


def add_feedback() -> None:
    """Insert the feedback that replies show."""
    insert_select(Feedback, columns.FEEDBACK, f"{_STORED} WHERE feedback IS NOT NULL")


def add_labels() -> None:
    """Insert tags, a second one for a part of the sessions, and notes of operators."""
    tagged = "console_plan, generate_series(0, 1) AS which WHERE mod(number, 5 + 20 * which) = 0"
    insert_select(SessionTag, columns.TAG, tagged, tags=TAGS)
    insert_select(SessionNote, columns.NOTE, "console_plan WHERE mod(number, 50) = 11")


def add_job(now: datetime) -> None:
    """Insert an ended job for all stored sessions, with an item for each."""
    sessions = Session._meta.db_table
    insert_select(Job, columns.JOB, sessions, tag=TAGS[0], now=now)
    job = Job.objects.order_by("-pk")[0]
    insert_select(JobItem, columns.JOB_ITEM, sessions, job=job.pk)
