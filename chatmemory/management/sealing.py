"""Verification and sealing of the audit, for the commands that do both."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict

from django.utils.translation import override

from chatmemory.management.counting import counted
from chatmemory.management.reporting import ReportingCommand
from chatmemory.services.audit import readings
from chatmemory.services.audit.seals import MAX_UNSEALED_AGE, audit_state, seal_audit, verify_audit

logger = logging.getLogger("chatmemory.audit")
"""Logs the head of the chain after each sealing."""


def verify_and_seal(
    command: ReportingCommand,
    *,
    head: str = "",
    former_keys: Sequence[str] = (),
    seals: bool = True,
    seals_old: bool = False,
) -> str:
    """Seal new entries if the audit has no findings; print and log the head of the chain.

    Return the problem that prevented sealing, or an empty string. Entries older than
    MAX_UNSEALED_AGE without a seal are a problem unless `seals_old` is set, since their seals may
    have been deleted. Raises BadInput, MemoryUnavailable.
    """
    if seals:
        readings.close_readings()
    found = sealed = 0
    with override(None):  # commands are in English
        findings = verify_audit(head=head, former_keys=former_keys, progress=command.progress)
        for finding in findings:
            command.report(finding.sentence, **asdict(finding))
            found += 1
    lines: list[str] = []
    state = audit_state()
    if state.oldest_unsealed is not None:
        since = state.oldest_unsealed.isoformat(timespec="seconds")
        lines.append(f"Not sealed yet: {counted(state.unsealed, 'entry')}, the oldest from {since}")
    problem = _problem_text(found, 0 if seals_old or not seals else state.overdue)
    if seals and not problem:
        sealed = seal_audit(former_keys=former_keys)
        lines.append(f"Sealed now: {sealed:,}")
        state = audit_state()
        if state.head:
            logger.info("audit head %s", state.head)
    lines.append(f"head {state.head}" if state.head else "No entry is sealed.")
    command.report(
        "\n".join(lines), findings=found, sealed=sealed, unsealed=state.unsealed, head=state.head
    )
    return problem


def _problem_text(found: int, overdue: int) -> str:
    if found:
        findings = counted(found, "finding")
        return f"{findings}; nothing was sealed. Compare the named entries with a backup."
    if overdue:
        return (
            f"{counted(overdue, 'entry')} without a seal for more than {MAX_UNSEALED_AGE.days} "
            "days; nothing was sealed. Their seals may have been deleted: verify against an "
            "earlier head (chatmemory_audit_verify --head). If sealing was only not run for that "
            "long, run chatmemory_audit_verify --seal-old."
        )
    return ""
