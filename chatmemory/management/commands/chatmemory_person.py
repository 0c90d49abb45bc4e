"""The command that shows what is stored of a person, and whether a session's person was erased."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import chain
from typing import Any

from django.core.management import CommandError, CommandParser
from django.db.models import Case, Q, Value, When

from chatmemory import services
from chatmemory.access.actors import importing_scope
from chatmemory.codec import check_value
from chatmemory.database.batches import BATCH_SESSIONS, batches, count_of, reported
from chatmemory.database.retries import retried
from chatmemory.errors import BadInput, ChatMemoryError
from chatmemory.management.counting import counted
from chatmemory.management.erasures import erasure_sentence
from chatmemory.management.exits import UNKNOWN, UsageError
from chatmemory.management.owners import scope_of
from chatmemory.management.reporting import ReportingCommand
from chatmemory.models import Session, SessionQuerySet, unexpired
from chatmemory.services import Actor
from chatmemory.services.erasure.erasure import stored_sessions_of
from chatmemory.services.erasure.past_erasures import (
    count_unknown_erasures,
    find_erasures,
    find_erasures_of_key,
)
from chatmemory.services.erasure.stored_data import StoredData


class Command(ReportingCommand):
    """Prints no content: numbers, keys and states of sessions, and receipts of erasures."""

    help = (
        "Show what is stored of a person: the conversations, those on hold, numbers, and the "
        "receipts of erasures. --erased searches the erasures of a conversation's key, if the "
        "person is not known. The exit status is 1 if nothing is stored or was erased, and 3 if "
        "that is unknown because a key is not in AUDIT_KEY_FALLBACKS."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        group = parser.add_mutually_exclusive_group(required=True)
        group.add_argument("--owner", help="username of the person")
        group.add_argument(
            "--scope", help="scope of a user or a visitor, such as user:7 (7 is the primary key)"
        )
        group.add_argument(
            "--erased",
            metavar="KEY",
            help="was a conversation with this key erased, with its person?",
        )
        parser.add_argument("--summary", action="store_true", help="do not list the conversations")

    def handle(
        self, *, owner: str | None, scope: str | None, erased: str | None, **options: Any
    ) -> None:
        try:
            if erased is not None:
                self._show_erased(erased, is_summary=options["summary"])
            else:
                self._show_person(scope_of(owner, scope) or "", is_summary=options["summary"])
        except BadInput as error:
            raise UsageError(str(error)) from error
        except ChatMemoryError as error:
            raise CommandError(str(error)) from error

    def _show_person(self, scope: str, *, is_summary: bool) -> None:
        by = Actor.server("chatmemory_person")
        record = find_erasures(by=by, scope=scope)
        sessions = stored_sessions_of(scope)
        if not is_summary:
            self._list_sessions(sessions)
        for erasure in record.erasures:
            self.report(erasure_sentence(erasure), **asdict(erasure))
        stored = services.count_stored_data(sessions=sessions, scope=scope)
        self.report(
            f"{scope}: {_numbers_text(stored)}, {counted(len(record.erasures), 'erasure')}",
            scope=scope,
            **asdict(stored),
            erasures=len(record.erasures),
            unknown_key=record.unknown_key,
        )
        if not stored.sessions and not stored.derived and not record.erasures:
            _fail_with(
                f"Nothing is stored under {scope}, and no erasure is recorded.", record.unknown_key
            )

    def _list_sessions(self, sessions: SessionQuerySet) -> None:
        for session in self._progressing(sessions):
            held = ", on hold" if session.held_at else ""
            hidden = session.first_seq - session.stored_from
            self.report(
                f"conversation {session.pk} ({session.key}): {_session_state(session)}{held}, "
                f"{counted(session.message_count, 'message')}, {hidden:,} hidden",
                session=session.pk,
                key=session.key,
                state=_session_state(session),
                held_at=session.held_at,
                messages=session.message_count,
                hidden_messages=hidden,
                created_at=session.created_at,
                last_message_at=session.last_message_at,
            )

    def _progressing(self, sessions: SessionQuerySet) -> Iterator[Session]:
        found = chain.from_iterable(map(_with_states, batches(sessions, BATCH_SESSIONS)))
        if self.progress is None:
            return found
        return reported(found, self.progress, count_of(sessions))

    def _show_erased(self, key: str, *, is_summary: bool) -> None:
        if is_summary:
            raise UsageError("--summary does not belong to --erased.")
        check_value(key, "--erased")
        erasures = find_erasures_of_key(session_key=key)
        unknown = count_unknown_erasures()
        for erasure in erasures:
            self.report(erasure_sentence(erasure), **asdict(erasure))
        is_erased = any(erasure.completed_at for erasure in erasures)
        self.report(
            f"{counted(len(erasures), 'erasure')} of a conversation with this key.",
            erasures=len(erasures),
            unknown_key=unknown,
            is_erased=is_erased,
        )
        if not is_erased:
            _fail_with("No completed erasure of a conversation with this key is recorded.", unknown)


def _fail_with(problem: str, unknown_key: int) -> None:
    """Raise CommandError, with its own status if keys are missing for the answer."""
    if not unknown_key:
        raise CommandError(problem)
    raise CommandError(
        f"Unknown: {counted(unknown_key, 'erasure')} recorded under another key. "
        "Add that key to AUDIT_KEY_FALLBACKS and run this again.",
        returncode=UNKNOWN,
    )


@retried(is_repeatable=True)
def _with_states(pks: list[int]) -> list[Session]:
    """Return sessions with their `state`."""
    state = Case(
        When(removed_at__isnull=False, then=Value("purged")),
        When(scope__startswith=importing_scope(""), then=Value("importing")),
        When(~Q(archived_at=None) & unexpired(), then=Value("archived")),
        When(unexpired(), then=Value("open")),
        default=Value("expired"),
    )
    found = Session.objects.filter(pk__in=pks).defer("instructions", "metadata", "title")
    return list(found.annotate(state=state).order_by("pk"))


def _session_state(session: Any) -> str:
    state: str = session.state
    return state


def _numbers_text(stored: StoredData) -> str:
    parts = [counted(stored.sessions, "conversation")]
    named = {
        "on hold": stored.held,
        "archived": stored.archived,
        "purged": stored.purged,
    }
    parts += [f"{count:,} {name}" for name, count in named.items() if count]
    parts.append(counted(stored.messages, "message"))
    parts += [f"{stored.hidden_messages:,} hidden"] if stored.hidden_messages else []
    parts.append(counted(stored.turns, "turn"))
    parts += [f"{counted(stored.derived, 'row')} of other apps"] if stored.derived else []
    return ", ".join(parts)
