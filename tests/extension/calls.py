"""What the core calls. Tests set `dust`, and read `counted`, `prepared` and `swept`."""

from __future__ import annotations

from django.db.models import TextChoices

from chatmemory.database.batches import Progress
from chatmemory.services.health.facts import FactValue
from chatmemory.services.removal.deletions import Deletion

dust: list[int] = []
counted: list[dict[str, int]] = []
prepared: list[Progress | None] = []
swept: list[int] = []


class Task(TextChoices):
    SWEEP = "sweep", "sweep the floor"


class Recorded(TextChoices):
    SWEEP = "extension_sweep", "Floor swept"


def read_dust() -> FactValue:
    """Raises IndexError if there is no dust."""
    return FactValue(value=dust[0], is_bad=dust[0] > 5, advice="Sweep.")


def count(deletion: Deletion) -> None:
    kinds = ("turns", "messages", "feedback", "sessions")
    counted.append({kind: getattr(deletion, kind).count() for kind in kinds})


def prepare(progress: Progress | None) -> None:
    prepared.append(progress)


def sweep_dust() -> float:
    """Note the call, and fail each second time."""
    swept.append(len(swept))
    if len(swept) % 2 == 0:
        raise ValueError("dust")
    return 0.01
