"""`chatmemory_recall`: what is left of dialogues when the servers die in the middle."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.management import CommandError, call_command

from chatmemory.errors import BadInput
from project.recall_dialogues import read_dialogues

TALKS = [
    [
        "The kettle with the blue handle leaks, order 48213.",
        "It stands in our office in Lisbon.",
        "Send the new lid to Benicia, please.",
        "The courier should ring at half past 4.",
    ],
    [
        "I start in Zurich with my bicycle.",
        "I want a couchette, the lower berth.",
        "My train should leave on the 6th of March.",
        "Book the breakfast for 2 people.",
    ],
]
VALUES = [
    ["48213", "Lisbon", "Benicia", "half past 4"],
    ["Zurich", "lower berth", "6th of March", "2 people"],
]


def talk(said: list[str], values: list[str]) -> dict[str, Any]:
    """A dialogue whose every turn of the user tells a fact, as it stands in a file."""
    turns = []
    for text in said:
        turns += [{"role": "human", "text": text}, {"role": "ai", "text": "Fine."}]
    facts = [{"turn": 2 * n, "slot": "a.b_c", "value": v} for n, v in enumerate(values)]
    return {"id": "1", "turns": turns, "facts": facts}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "talks.jsonl"
    path.write_text("\n".join(json.dumps(talk(*pair)) for pair in zip(TALKS, VALUES, strict=True)))
    return path


def recall(file: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a process of its own: it makes a database, and leaves this one alone."""
    return subprocess.run(  # noqa: S603  # our own command
        [sys.executable, "manage.py", "chatmemory_recall", str(file), *options],
        cwd=settings.BASE_DIR,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "project.settings"},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


@pytest.mark.slow
def test_the_window_holds_every_fact_before_and_after_the_kill(file):
    run = recall(file)
    assert run.returncode == 0, run.stderr
    lines = [line.split() for line in run.stdout.splitlines()]
    assert [" ".join(line[-5:-2]) for line in lines[2:5]] == ["4 4 (100.0%)"] * 2 + ["8 8 (100.0%)"]
    assert lines[1][-3:] == ["4", "4", "(100.0%)"]
    assert lines[4][-2:] == ["8", "(100.0%)"]
    assert "2 sockets open" in run.stdout


@pytest.mark.slow
def test_what_a_process_remembers_is_lost_with_it(file):
    run = recall(file, "--memory", "process", "--at-least", "0.5", "--servers", "1")
    assert run.returncode == 1
    assert "0.0% given to the model, less than 50.0%." in run.stderr
    before, after = (line.split() for line in run.stdout.splitlines()[1:3])
    assert before[-1] == "(100.0%)"
    assert after[-3] == "(0.0%)"


def test_a_question_does_not_name_what_it_asks_for(file):
    dialogues = list(read_dialogues(file))
    assert [list(dialogue.said) for dialogue in dialogues] == TALKS
    facts = [fact for dialogue in dialogues for fact in dialogue.facts]
    assert [fact.turn for fact in facts] == [0, 1, 2, 3] * 2
    assert facts[0].question == "What did I say about blue handle kettle leak?"
    assert not [fact for fact in facts if set(fact.value.split()) & set(fact.question.split())]


def test_a_sentence_of_nothing_but_the_value_is_asked_for_by_its_slot(tmp_path):
    path = tmp_path / "talks.jsonl"
    path.write_text(json.dumps(talk(["At half past 4."], ["half past 4"])))
    [dialogue] = read_dialogues(path)
    assert dialogue.facts[0].question == "What did I say about a b c?"


@pytest.mark.parametrize(
    "line",
    [
        "{oops",
        "[]",
        '{"turns": []}',
        json.dumps(talk(["Hello"], ["not said"])),
        json.dumps({"turns": [{"role": "ai", "text": "x"}], "facts": [{"turn": 0}]}),
    ],
)
def test_a_line_that_is_no_dialogue_is_named(tmp_path, line):
    path = tmp_path / "talks.jsonl"
    path.write_text(line)
    with pytest.raises(BadInput, match="Line 1"):
        list(read_dialogues(path))


@pytest.mark.parametrize("text", ["", json.dumps(talk(["Hello"], []))])
def test_without_facts_there_is_nothing_to_ask(tmp_path, text):
    path = tmp_path / "talks.jsonl"
    path.write_text(text)
    with pytest.raises(CommandError, match="no facts"):
        call_command("chatmemory_recall", str(path))


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(CommandError, match="No such file"):
        call_command("chatmemory_recall", str(tmp_path / "nothing"))
