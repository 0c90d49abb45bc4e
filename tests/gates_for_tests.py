"""Functions for the setting GATE: like those of a host with a second factor."""

from __future__ import annotations

from chatmemory.errors import Refused
from chatmemory.services import Visit

DEVICE = "otp_device_id"
"""The key under which django-otp stores the confirmed device in the Django session."""

SENTENCE = "Confirm your second factor first."

VISITS: list[Visit] = []
"""The visits of this process, newest last."""


def second_factor(visit: Visit) -> None:
    """Let in only Django sessions with a confirmed device."""
    VISITS.append(visit)
    if DEVICE not in visit.session:
        raise Refused(SENTENCE, reason="second_factor")


async def asecond_factor(visit: Visit) -> None:
    """The same as a coroutine."""
    second_factor(visit)


def fail(visit: Visit) -> None:
    """Raise an error of the host."""
    raise LookupError(f"no device of {visit.user}")


def forget(visit: Visit) -> bool:
    """Return a value, as a host expects that only an error refuses."""
    return False
