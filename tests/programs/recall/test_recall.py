"""The recall benchmark, `python -m tests.programs.recall`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from chatmemory.errors import BadInput
from tests.blocks import block_with
from tests.programs.recall.dialogues import read_dialogues

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


def dialogue_line(texts: list[str], values: list[str]) -> dict[str, Any]:
    """Return a line of a dialogue file in which each user turn states a fact."""
    turns = []
    for text in texts:
        turns += [{"role": "human", "text": text}, {"role": "ai", "text": "Fine."}]
    facts = [{"turn": 2 * n, "slot": "a.b_c", "value": v} for n, v in enumerate(values)]
    return {"id": "1", "turns": turns, "facts": facts}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "talks.jsonl"
    path.write_text(
        "\n".join(json.dumps(dialogue_line(*pair)) for pair in zip(TALKS, VALUES, strict=True))
    )
    return path


def recall(file: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the benchmark in its own process, since it creates a database."""
    return subprocess.run(  # noqa: S603  # our own command line
        [sys.executable, "-m", "tests.programs.recall", str(file), *options],
        cwd=settings.BASE_DIR,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "project.settings"},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


@pytest.mark.long
def test_the_window_contains_every_fact_before_and_after_the_kill(file):
    run = recall(file)
    assert run.returncode == 0, run.stderr
    lines = [line.split() for line in run.stdout.splitlines()]
    assert [" ".join(line[-5:-2]) for line in lines[2:5]] == ["4 4 (100.0%)"] * 2 + ["8 8 (100.0%)"]
    assert lines[1][-3:] == ["4", "4", "(100.0%)"]
    assert lines[4][-2:] == ["8", "(100.0%)"]
    assert "2 sockets open" in run.stdout


@pytest.mark.long
@pytest.mark.regression
def test_the_documented_dialogue_of_one_turn_is_replayed(file):
    file.write_text(block_with("docs/reasons/recall.md", "I fly to Concord").text)
    run = recall(file)
    assert run.returncode == 0, run.stderr
    assert "1 dialogues, 1 turns sent and 1 facts asked for" in run.stdout


@pytest.mark.long
def test_the_memory_of_a_process_is_lost_with_it(file):
    run = recall(file, "--memory", "process", "--at-least", "0.5", "--servers", "1")
    assert run.returncode == 1
    assert "0.0% given to the model, less than 50.0%." in run.stderr
    before, after = (line.split() for line in run.stdout.splitlines()[1:3])
    assert before[-1] == "(100.0%)"
    assert after[-3] == "(0.0%)"


def test_a_question_does_not_contain_its_value(file):
    dialogues = list(read_dialogues(file))
    assert [list(dialogue.texts) for dialogue in dialogues] == TALKS
    facts = [fact for dialogue in dialogues for fact in dialogue.facts]
    assert [fact.turn for fact in facts] == [0, 1, 2, 3] * 2
    assert facts[0].question == "What did I say about blue handle kettle leak?"
    assert not [fact for fact in facts if set(fact.value.split()) & set(fact.question.split())]


def test_the_question_names_the_slot_if_the_sentence_is_only_the_value(tmp_path):
    path = tmp_path / "talks.jsonl"
    path.write_text(json.dumps(dialogue_line(["At half past 4."], ["half past 4"])))
    [dialogue] = read_dialogues(path)
    assert dialogue.facts[0].question == "What did I say about a b c?"


@pytest.mark.parametrize(
    "line",
    [
        "{oops",
        "[]",
        '{"turns": []}',
        json.dumps(dialogue_line(["Hello"], ["not stated"])),
        json.dumps({"turns": [{"role": "ai", "text": "x"}], "facts": [{"turn": 0}]}),
    ],
)
def test_a_wrong_line_is_refused_with_its_number(tmp_path, line):
    path = tmp_path / "talks.jsonl"
    path.write_text(line)
    with pytest.raises(BadInput, match="Line 1"):
        list(read_dialogues(path))


@pytest.mark.long
@pytest.mark.parametrize("text", ["", json.dumps(dialogue_line(["Hello"], []))])
def test_a_file_without_facts_is_refused(tmp_path, text):
    path = tmp_path / "talks.jsonl"
    path.write_text(text)
    run = recall(path)
    assert (run.returncode, run.stderr) == (1, "The file contains no facts.\n")


@pytest.mark.long
def test_a_missing_file_is_refused(tmp_path):
    run = recall(tmp_path / "nothing")
    assert run.returncode == 1
    assert "No such file" in run.stderr
