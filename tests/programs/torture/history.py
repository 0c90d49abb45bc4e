"""The events of a plan, as clients saw them."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

GIVEN_UP = "given up"
"""The text of the error event of a client that stopped waiting."""

Kind = Literal["invoke", "ack", "token", "done", "error", "lost", "back", "fault"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event of a client, or a fault."""

    kind: Kind
    at: float = 0.0
    """On the monotonic clock."""
    client: str = ""
    session: str = ""
    """The session's key; a plan uses each key once."""
    id: str = ""
    """The client_id of the message."""
    text: str = ""
    """The sent text; of a token the shown text; of an error its code; of a fault its name."""
    seq: int | None = None
    status: str = ""
    is_final: bool = False
    """Of an error: a retry would fail too."""


class History:
    """Keeps the events of a plan, and writes each to a file as a line of JSON."""

    def __init__(self, file: Path) -> None:
        self.events: list[Event] = []
        self._file = file.open("a")

    def note(self, event: Event) -> Event:
        """Record an event, with the current time if it has none."""
        if not event.at:
            event = Event(**{**asdict(event), "at": time.monotonic()})
        self.events.append(event)
        self._file.write(json.dumps(asdict(event), ensure_ascii=False) + "\n")
        return event

    def faults(self) -> Counter[str]:
        """Count each fault."""
        return Counter(event.text for event in self.events if event.kind == "fault")

    def close(self) -> None:
        """Write the last lines."""
        self._file.close()


def read_history(file: Path) -> list[Event]:
    """Read the events in a file."""
    return [Event(**json.loads(line)) for line in file.read_text().splitlines()]
