"""Reads dialogues with questions whose evidence is known: LoCoMo and BEAM."""

from __future__ import annotations

import json
import math
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

FIRST_DAY = datetime(2024, 1, 1, tzinfo=UTC)
"""When a chat without dates happened."""

_DATE_TIME = re.compile(r"(\d+):(\d+) (am|pm) on (\d+) (\w+),? (\d{4})")
_PLAN = re.compile(r"\s*->->\s*[\d,\s]*$")
"""The place of a message in the plan of a BEAM chat, after its text: no part of what was said."""
_EVIDENCE = re.compile(r"D(\d+):(\d+)")


class BadCorpus(ValueError):
    """A file of a corpus does not have the expected form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A message of a dialogue."""

    role: str
    name: str | None = None
    text: str
    created_at: datetime

    @property
    def tokens(self) -> int:
        """The estimate of TOKEN_COUNTER's default."""
        return math.ceil(len(self.text) / 4) + 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a dialogue is searched for."""

    text: str
    evidence: frozenset[int]
    """Indexes of the rows that answer it; empty if nothing does."""
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialogue:
    """One person's messages, with its questions."""

    name: str
    rows: Sequence[Row]
    questions: Sequence[Question]
    is_fitted: bool
    """Whether the scorer's weights were fitted on it."""


def read_locomo(path: Path) -> list[Dialogue]:
    """Read a JSON file of all conversations, or a folder or zip with a JSON file for each.

    The weights were fitted on the first half, by number. Raises OSError, BadCorpus.
    """
    conversations = sorted(_conversations(path), key=lambda pair: pair[0])
    if not conversations:
        raise BadCorpus(f"{path} has no conversations.")
    return [
        _locomo(name, value, is_fitted=2 * place < len(conversations))
        for place, (name, value) in enumerate(conversations)
    ]


def read_beam(folder: Path) -> list[Dialogue]:
    """Read a folder of numbered chats. The weights were fitted on the odd ones of 100K.

    Raises OSError, BadCorpus.
    """
    chats = sorted(
        (entry for entry in folder.iterdir() if entry.name.isdigit()),
        key=lambda entry: int(entry.name),
    )
    if not chats:
        raise BadCorpus(f"{folder} has no numbered chats.")
    return [_beam(chat, is_fitted=int(chat.name) % 2 == 1) for chat in chats]


def _conversations(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if path.is_dir():
        for file in path.glob("*.json"):
            yield file.stem, json.loads(file.read_bytes())
    elif zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if name.endswith(".json"):
                    yield Path(name).stem, json.loads(archive.read(name))
    else:
        for value in json.loads(path.read_bytes()):
            yield str(value.get("sample_id", "")), {**value["conversation"], "qa": value["qa"]}


def _locomo(name: str, value: Mapping[str, Any], *, is_fitted: bool) -> Dialogue:
    rows: list[Row] = []
    places: dict[str, int] = {}
    try:
        numbers = sorted(int(key[8:]) for key in value if re.fullmatch(r"session_\d+", key))
        for number in numbers:
            created_at = _date_time(value[f"session_{number}_date_time"])
            for turn in value[f"session_{number}"]:
                places[turn["dia_id"]] = len(rows)
                text = turn.get("text", "")
                if turn.get("blip_caption"):
                    text = f"{text} [{turn['blip_caption']}]"
                rows.append(
                    Row(role="user", name=turn["speaker"], text=text, created_at=created_at)
                )
        questions = [
            Question(
                text=item["question"],
                kind=f"category {item['category']}",
                evidence=frozenset(
                    places[key]
                    for entry in item.get("evidence", [])
                    for session, turn in _EVIDENCE.findall(entry)
                    if (key := f"D{int(session)}:{int(turn)}") in places
                ),
            )
            for item in value["qa"]
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise BadCorpus(f"Conversation {name} has another form: {error!r}.") from error
    return Dialogue(name=name, rows=rows, questions=questions, is_fitted=is_fitted)


def _date_time(text: str) -> datetime:
    found = _DATE_TIME.search(text)
    if found is None:
        raise BadCorpus(f"{text!r} is not a date.")
    hour, minute, half, day, month, year = found.groups()
    moment = datetime.strptime(f"{day} {month} {year}", "%d %B %Y").replace(tzinfo=UTC)
    return moment.replace(hour=int(hour) % 12 + 12 * (half == "pm"), minute=int(minute))


def _beam(chat: Path, *, is_fitted: bool) -> Dialogue:
    rows: list[Row] = []
    places: dict[int, int] = {}
    moment = FIRST_DAY
    try:
        for batch in json.loads((chat / "chat.json").read_bytes()):
            for turn in batch["turns"]:
                for message in turn:
                    if message.get("time_anchor"):
                        moment = _anchor(message["time_anchor"])
                    places[message["id"]] = len(rows)
                    text = _PLAN.sub("", message["content"])
                    rows.append(Row(role=message["role"], text=text, created_at=moment))
        asked = json.loads((chat / "probing_questions" / "probing_questions.json").read_bytes())
        questions = [
            Question(
                text=item["question"],
                kind=kind,
                evidence=frozenset(
                    places[number]
                    for number in _ids(item.get("source_chat_ids"))
                    if number in places
                )
                if kind != "abstention"
                else frozenset(),
            )
            for kind, items in asked.items()
            for item in items
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise BadCorpus(f"Chat {chat} has another form: {error!r}.") from error
    return Dialogue(name=chat.name, rows=rows, questions=questions, is_fitted=is_fitted)


def _anchor(text: str) -> datetime:
    return datetime.strptime(text, "%B-%d-%Y").replace(tzinfo=UTC)


def _ids(value: object) -> Iterator[int]:
    """Yield the numbers in lists and objects, however deep."""
    match value:
        case bool():
            return
        case int():
            yield value
        case str() if value.isdigit():
            yield int(value)
        case list():
            for item in value:
                yield from _ids(item)
        case dict():
            for item in value.values():
                yield from _ids(item)
