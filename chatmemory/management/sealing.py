"""Verifying and sealing the audit, for the commands that do both."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from django.core.management.base import OutputWrapper

from chatmemory import services
from chatmemory.management.counting import counted
from chatmemory.services.seals import MAX_UNSEALED_AGE

logger = logging.getLogger("chatmemory.audit")
"""One line with the head of the chain for each run that seals."""


def verify_and_seal(
    out: OutputWrapper,
    *,
    head: str = "",
    former_keys: Sequence[str] = (),
    seals: bool = True,
    seals_old: bool = False,
) -> str:
    """Verify the audit, seal new entries if nothing is wrong, and print and log the head.

    Return what is wrong, or an empty text. Entries that have waited for a seal too long count as
    wrong unless `seals_old` is set: they may have had one. Raises BadInput, MemoryUnavailable.
    """
    if seals:
        services.close_readings()
    found = 0
    for finding in services.verify_audit(head=head, former_keys=former_keys):
        out.write(finding.sentence)
        found += 1
    state = services.audit_state()
    if state.oldest_unsealed is not None:
        since = state.oldest_unsealed.isoformat(timespec="seconds")
        out.write(f"{counted(state.unsealed, 'entry')} not sealed yet, the oldest of {since}")
    trouble = _trouble(found, 0 if seals_old or not seals else state.overdue)
    if seals and not trouble:
        out.write(f"{services.seal_audit(former_keys=former_keys):,} sealed now")
        state = services.audit_state()
        logger.info("audit head %s", state.head or "none")
    out.write(f"head {state.head}" if state.head else "no entry is sealed")
    return trouble


def _trouble(found: int, overdue: int) -> str:
    if found:
        return f"{counted(found, 'finding')}; nothing was sealed."
    if overdue:
        return (
            f"{counted(overdue, 'entry')} without a seal for more than {MAX_UNSEALED_AGE.days} "
            "days; nothing was sealed. Their seals may have been deleted: compare an earlier head "
            "(chatmemory_audit_verify --head). If the audit was only not sealed for so long, run "
            "chatmemory_audit_verify --seal-old."
        )
    return ""
