"""The statements of each turn and page, as the files in `statements` show them.

A file has all that one call of a service sends, with the values as named or numbered parameters.
Only the line breaks differ: the ORM has none. `docs/generate/statements.py` writes the files.
"""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count, repeat
from pathlib import Path
from typing import Any

import django
import pytest
from django.db import connection
from django.db.backends.utils import CursorWrapper

from chatmemory import services
from chatmemory.database.reads import read_page_at, read_session_with_owner
from chatmemory.database.statements import _Name, _Statement
from chatmemory.models import Message, Session, Turn
from chatmemory.services.turns.claims import Claim, claim_next
from chatmemory.services.turns.progress import (
    finish_turn,
    renew_leases,
    save_partial,
    start_turn,
    unanswered_conditions,
)
from chatmemory.window import read_window
from tests.factories import make_messages, make_session, make_user

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]

FILES = Path(__file__).resolve().parent / "statements"
VENDORS = ("postgresql", "mysql", "sqlite")
DJANGO = (5, 2)
"""Another version of the ORM may write the same statement in other words."""

WIDTH = 100
CONSTANTS = {*Turn.Status.values, *Message.Role.values, *Message.Status.values}
"""Values that a file shows, since they are the same in each run."""
CLAUSES = re.compile(
    r" (?=(?:FROM|WHERE|SET|VALUES|ORDER BY|LIMIT|RETURNING|FOR|(?:LEFT OUTER|INNER) JOIN) )"
)
LIMITS = re.compile("SET STATEMENT .*? FOR ")
"""Those of lock waits on MariaDB."""
PARTS = re.compile(r"(?<=,) | (?=(?:AND|OR) )")
PLACE = re.compile(r"%(?:[%s]|\(\w+\)s)")

Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Talk:
    """A session of a user in which two turns ended, so that no counter is a constant."""

    session: Session

    @property
    def address(self) -> Mapping[str, Any]:
        owner = self.session.owner
        assert owner is not None
        by = services.Actor.user(owner)
        return {"session_key": self.session.key, "by": by, "scope": self.session.scope}

    def admit(self, client_id: str, owner: str = "") -> Claim | None:
        return services.admit_turn(
            **self.address, client_id=client_id, content="hi", owner=owner
        ).claim

    def claim(self, client_id: str = "c3", *, is_started: bool = False) -> Claim:
        claim = self.admit(client_id, "p1")
        assert claim is not None
        assert not is_started or start_turn(claim=claim)
        return claim

    def answer(self, client_id: str) -> None:
        reply(self.claim(client_id, is_started=True))


def reply(claim: Claim) -> None:
    message = {"role": "assistant", "content": "ho"}
    assert finish_turn(claim=claim, status="complete", message=message, model="m")


@pytest.fixture
def talk(caplog: pytest.LogCaptureFixture) -> Talk:
    caplog.set_level("WARNING", "chatmemory.turns")  # its line needs another statement
    talk = Talk(make_session(owner=make_user(), pk=10))
    talk.answer("c1")
    talk.answer("c2")
    return talk


def append(talk: Talk) -> Call:
    """Append: stores a batch of two messages when the host's code or a client sends them."""
    messages = make_messages("a", "b")
    return partial(services.append_messages, **talk.address, messages=messages, client_id="b1")


def admit(talk: Talk) -> Call:
    """Admit: stores a user's message with its turn, claimed for this process, when a person sends
    it to an idle session."""
    return partial(talk.admit, "c3", "p1")


def start(talk: Talk) -> Call:
    """Start: records the start of a run directly after its claim, unless its fence is lost."""
    return partial(start_turn, claim=talk.claim())


def read(talk: Talk) -> Call:
    """Read: reads the session and its owner for a responder when a run has started."""
    return partial(read_session_with_owner, talk.session.pk)


def window(talk: Talk) -> Call:
    """Window: reads the newest rows for the model after `read`, while the fence is valid."""
    claim = talk.claim(is_started=True)
    talk.session.refresh_from_db()
    return partial(read_window, talk.session, only_if=unanswered_conditions(claim))


def save(talk: Talk) -> Call:
    """Save: saves the partial text of a running turn, again and again while the model writes."""
    call = partial(save_partial, claim=talk.claim(is_started=True), text="ho", step=0)
    assert call()  # the first call builds its statement in a savepoint
    return call


def finish(talk: Talk) -> Call:
    """Finish: stores the last row of a run and ends its turn when the model has answered."""
    return partial(reply, talk.claim(is_started=True))


def claim(talk: Talk) -> Call:
    """Claim: stores the message of the first waiting turn and claims it when no other turn runs."""
    running = talk.claim(is_started=True)
    talk.admit("c4")
    reply(running)
    return partial(claim_next, session_pk=talk.session.pk, owner="p1")


def page(talk: Talk) -> Call:
    """Page: reads the head and the newest rows of a session when a client opens or reloads it."""
    return partial(read_page_at, talk.session.scope, "talk", after=None, limit=20)


def renew(talk: Talk) -> Call:
    """Renew: extends the leases of the runs of a process, here two, every few seconds."""
    other = Talk(make_session("other", owner=talk.session.owner, pk=11))
    claims = [each.claim(is_started=True) for each in (talk, other)]
    call = partial(renew_leases, claims=claims)
    call()  # the first call builds its statement in a savepoint
    return call


STATEMENTS = (append, admit, start, read, save, finish, claim, page, window, renew)


@dataclass(slots=True)
class Recorder:
    """Records the statements of a connection as a file shows them."""

    statements: list[str] = field(default_factory=list)
    names: Sequence[str | None] = ()
    """Of the parameters of the next statement, if it was built once."""

    def note(self, sql: str, params: Any) -> None:
        if not sql.startswith("BEGIN"):  # of SQLite: `note_transaction` notes it
            self.statements.append(shown(sql, params, self.names))
        self.names = ()

    @contextmanager
    def note_transaction(self, _connection: object, sql: str) -> Iterator[None]:
        self.statements.append(sql)
        yield


def recorded(call: Call, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the statements that a call sends, from BEGIN to COMMIT."""
    recorder = Recorder()
    cursors: Any = CursorWrapper
    bound, send = _Statement.bound, cursors._execute

    def note_names(statement: _Statement, *args: Any) -> Any:
        recorder.names = [
            each.name if isinstance(each, _Name) else None for each in statement.params
        ]
        return bound(statement, *args)

    # Not by an `execute_wrapper`, which would not see the limits of lock waits that another adds.
    def execute(cursor: Any, sql: str, params: Any, *args: Any) -> Any:
        recorder.note(sql, params)
        return send(cursor, sql, params, *args)

    with monkeypatch.context() as patch:
        patch.setattr(cursors, "_execute", execute)
        patch.setattr(_Statement, "bound", note_names)
        patch.setattr("django.db.backends.base.base.debug_transaction", recorder.note_transaction)
        call()
    return recorder.statements


def shown(sql: str, params: Any, names: Sequence[str | None]) -> str:
    """Return a statement with its parameters by name or number, and the constants among these."""
    if "SAVEPOINT" in sql:
        return re.sub('["`].*', "savepoint", sql)
    listed = () if params is None or isinstance(params, Mapping) else params
    values = zip(count(1), listed, names or repeat(None), strict=False)
    constants: list[str] = []

    def place(match: re.Match[str]) -> str:
        if match[0] == "%%":
            return "%"
        if match[0] != "%s":
            return match[0]
        number, value, name = next(values)
        # What has no name in a statement that was built once is a part of it.
        if name is None and (names or (isinstance(value, str) and value in CONSTANTS)):
            text = f"'{value}'" if isinstance(value, str) else str(value)
            constants.append(f"-- %({number})s is {text}")
        return f"%({name or number})s"

    return "\n".join([broken(sql if params is None else PLACE.sub(place, sql)), *constants])


def broken(sql: str) -> str:
    """Add line breaks to a statement of the ORM, and to long lines."""
    if limits := LIMITS.match(sql):
        return f"{limits[0].rstrip()}\n{broken(sql[limits.end() :])}"
    if "\n" not in sql:
        sql = CLAUSES.sub(lambda match: f"\n{_indent(sql[: match.start()])}", sql)
    return "\n".join(_broken_line(line) for line in sql.split("\n") if line.strip())


def _indent(before: str) -> str:
    return "    " * (before.count("(") - before.count(")"))


def _broken_line(line: str) -> str:
    first, *parts = PARTS.split(line)
    indent = " " * (4 + len(line) - len(line.lstrip()))
    lines = [first]
    for part in parts:
        if len(lines[-1]) + 1 + len(part) <= WIDTH:
            lines[-1] += f" {part}"
        else:
            lines.append(indent + part)
    return "\n".join(map(str.rstrip, lines))


def text_of(scene: Callable[[Talk], Call], statements: Sequence[str]) -> str:
    """Return the content of a file: a sentence, and then the statements."""
    sentence = " ".join((scene.__doc__ or "").split())
    header = textwrap.fill(sentence, WIDTH, initial_indent="-- ", subsequent_indent="-- ")
    # The semicolon is before the comments, which belong to the statement.
    ended = [re.sub(r"\n-- |$", lambda match: f";{match[0]}", each, count=1) for each in statements]
    return "\n\n".join([header, *ended]) + "\n"


@pytest.mark.skipif(django.VERSION[:2] != DJANGO, reason="the files are those of Django 5.2")
@pytest.mark.parametrize("scene", STATEMENTS, ids=lambda scene: scene.__name__)
def test_a_file_shows_the_statements_that_are_sent(talk, monkeypatch, scene):
    file = FILES / f"{scene.__name__}.{connection.vendor}.sql"
    sent = text_of(scene, recorded(scene(talk), monkeypatch))
    if os.environ.get("CHATMEMORY_WRITE_STATEMENTS"):
        file.write_text(sent)
    assert (file.read_text() if file.exists() else "") == sent, (
        f"{file.name} shows another statement. If the new one is intended, run `make docs` with "
        "the URLs of the databases; see *How to change a statement* in CONTRIBUTING.md"
    )


def test_each_statement_has_a_file_for_each_database():
    expected = {f"{scene.__name__}.{vendor}.sql" for scene in STATEMENTS for vendor in VENDORS}
    assert {file.name for file in FILES.iterdir()} == expected
