"""What clients saw, one event after another."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

GIVEN_UP = "given up"
"""The text of an error event of a client that no longer waits."""

Kind = Literal["invoke", "ack", "token", "done", "error", "lost", "back", "fault"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A moment of a client, or a fault; on the monotonic clock."""

    kind: Kind
    at: float = 0.0
    client: str = ""
    session: str = ""
    """The session's key, of which a plan uses each once."""
    id: str = ""
    """The client_id of the message that it is about."""
    text: str = ""
    """What was said; of a token what was shown; of an error its code; of a fault its name."""
    seq: int | None = None
    status: str = ""
    is_final: bool = False
    """Of an error: it said that trying again is in vain."""


class History:
    """The events of a plan, kept here and written down, a line of JSON each."""

    def __init__(self, file: Path) -> None:
        self.events: list[Event] = []
        self._file = file.open("a")

    def note(self, event: Event) -> Event:
        """Take an event down, as of now if it has no time."""
        if not event.at:
            event = Event(**{**asdict(event), "at": time.monotonic()})
        self.events.append(event)
        self._file.write(json.dumps(asdict(event), ensure_ascii=False) + "\n")
        return event

    def faults(self) -> Counter[str]:
        """How often each fault happened."""
        return Counter(event.text for event in self.events if event.kind == "fault")

    def close(self) -> None:
        """Write the last lines down."""
        self._file.close()


def read_history(file: Path) -> list[Event]:
    """The events of a file."""
    return [Event(**json.loads(line)) for line in file.read_text().splitlines()]
