"""The command that acts on sessions as the pages of the admin do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from django.core.management import CommandError, CommandParser

from chatmemory.errors import BadInput, MemoryUnavailable
from chatmemory.management.acting import add_actor_arguments, command_actor
from chatmemory.management.counting import counted
from chatmemory.management.exits import UsageError
from chatmemory.management.reporting import ReportingCommand
from chatmemory.management.selecting import add_session_arguments, select_sessions
from chatmemory.models import JobAction, Session, SessionQuerySet
from chatmemory.services.jobs.actions import ACTIONS, UNCHANGED
from chatmemory.services.jobs.create import Order
from chatmemory.services.jobs.perform import DONE, Performed, perform_each, preview_each
from chatmemory.services.jobs.preview import ActionPreview

LIMITS = ("keep_last", "keep_turns", "keep_tokens", "before", "before_seq")
PARAMS: Mapping[str, tuple[str, ...]] = {
    JobAction.TRIM: LIMITS,
    JobAction.RESTORE: ("entry",),
    JobAction.TAG: ("tag",),
    JobAction.UNTAG: ("tag",),
}
"""The options of the actions that have any; exactly one is required, except for `restore`."""

AS_WANTED = frozenset({DONE, UNCHANGED, "idle"})
"""Outcomes after which the session is as the action would leave it. For removals, also `purged`."""


class Command(ReportingCommand):
    """Acts session by session, each in its own transaction; can be stopped and run again."""

    help = (
        "Act on conversations: " + ", ".join(ACTIONS) + ". Prints the outcome for each one. The "
        "exit status is 1 if one was not changed, except if it already was as wanted. If "
        "interrupted, run it again."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("action", choices=ACTIONS)
        add_session_arguments(parser, many=True)
        add_actor_arguments(parser)
        parser.add_argument(
            "--dry-run", action="store_true", help="only print what would be changed"
        )
        for limit in ("--keep-last", "--keep-turns", "--keep-tokens"):
            parser.add_argument(limit, type=int, metavar="N", help="for trim: what to keep")
        parser.add_argument(
            "--before", metavar="TIME", help="for trim: such as 2026-05-04T00:00:00+00:00"
        )
        parser.add_argument("--before-seq", type=int, metavar="SEQ", help="for trim")
        parser.add_argument("--tag", help="for tag and untag")
        parser.add_argument(
            "--entry",
            type=int,
            metavar="PK",
            help="for restore: the audit entry of the removal to undo, together with all later "
            "ones (default: only the last removal)",
        )

    def handle(self, *, action: str, by: str, reason: str, dry_run: bool, **options: Any) -> None:
        order = Order(by=command_actor("chatmemory_action", by=by, reason=reason), reason=reason)
        params = _params(action, options)
        sessions = select_sessions(options)
        try:
            if dry_run:
                outcomes = self._show_previews(action, sessions, params)
            else:
                outcomes = self._act_on_chunk(action, sessions, order, params)
        except (BadInput, MemoryUnavailable) as error:
            raise CommandError(str(error)) from error
        wanted = AS_WANTED | {"purged"} if ACTIONS[action].removes else AS_WANTED
        if left := outcomes.total() - sum(outcomes[code] for code in wanted):
            verb = "would not be" if dry_run else "not"
            raise CommandError(f"{counted(left, 'conversation')} {verb} changed.")

    def _act_on_chunk(
        self, action: str, sessions: SessionQuerySet, order: Order, params: Mapping[str, Any]
    ) -> Counter[str]:
        outcomes: Counter[str] = Counter()
        messages = 0
        for performed in perform_each(
            action=action, sessions=sessions, order=order, params=params, progress=self.progress
        ):
            outcomes[performed.outcome] += 1
            messages += performed.messages
            self._show_outcome(performed)
        self._show_total(action, outcomes, messages)
        return outcomes

    def _show_outcome(self, performed: Performed) -> None:
        entry = performed.entry
        result = performed.outcome
        if entry is not None:
            moved = counted(performed.messages, "message")
            result = f"{result}, {f'{moved}, ' if performed.messages else ''}audit entry {entry.pk}"
        self.report(
            f"{_session_name(performed.session)}: {result}",
            **_address_fields(performed.session),
            outcome=performed.outcome,
            messages=performed.messages,
            entry=entry and entry.pk,
        )

    def _show_previews(
        self, action: str, sessions: SessionQuerySet, params: Mapping[str, Any]
    ) -> Counter[str]:
        outcomes: Counter[str] = Counter()
        messages = 0
        for session, preview in preview_each(
            action=action, sessions=sessions, params=params, progress=self.progress
        ):
            outcomes[preview.skipped or DONE] += 1
            messages += preview.messages
            self.report(
                f"{_session_name(session)}: {_sentence(action, preview)}",
                **_address_fields(session),
                outcome=preview.skipped or DONE,
                messages=preview.messages,
                waiting=preview.waiting,
                ends_run=preview.ends_run,
                partial_chars=preview.partial_chars,
                dry_run=True,
            )
        self._show_total(action, outcomes, messages, dry_run=True)
        return outcomes

    def _show_total(
        self, action: str, outcomes: Counter[str], messages: int, *, dry_run: bool = False
    ) -> None:
        done = outcomes[DONE]
        skipped = {code: count for code, count in sorted(outcomes.items()) if code != DONE}
        parts = [f"{action}: {counted(done, 'conversation')}"]
        parts += [counted(messages, "message")] if messages else []
        parts += [f"{count:,} {code}" for code, count in skipped.items()]
        self.report(
            ", ".join(parts) + (" (nothing was changed)" if dry_run else ""),
            action=action,
            done=done,
            skipped=skipped,
            messages=messages,
            dry_run=dry_run,
        )


def _params(action: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the action. Raises UsageError."""
    known = {name for names in PARAMS.values() for name in names}
    given = {name: options[name] for name in known if options[name] is not None}
    own = PARAMS.get(action, ())
    if wrong := sorted(given.keys() - set(own)):
        raise UsageError(f"{_option_name(wrong[0])} does not belong to {action}.")
    if own and len(given) != 1 and (given or action != JobAction.RESTORE):
        raise UsageError(f"{action} needs one of {', '.join(map(_option_name, own))}.")
    try:
        ACTIONS[action].check(given)
    except BadInput as error:
        raise UsageError(str(error)) from error
    return given


def _option_name(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _address_fields(session: Session) -> dict[str, Any]:
    return {
        "session": session.pk,
        "scope": session.removed_scope or session.scope,
        "key": session.key,
    }


def _session_name(session: Session) -> str:
    return f"conversation {session.pk} ({session.removed_scope or session.scope}, {session.key})"


def _sentence(action: str, preview: ActionPreview) -> str:
    """Return what the action would do."""
    if preview.skipped:
        return f"not changed: {preview.skipped}"
    parts = [f"would {action}"]
    parts += [counted(preview.messages, "message")] if preview.messages else []
    parts += [f"cancel {counted(preview.waiting, 'waiting turn')}"] if preview.waiting else []
    if preview.ends_run:
        parts.append(f"end a reply of {counted(preview.partial_chars, 'character')}")
    return ", ".join(parts)
