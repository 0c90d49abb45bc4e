"""The benchmark of the search, on tiny corpora in the formats of LoCoMo and BEAM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.programs.search_bench.corpora import BadCorpus, Dialogue, Row, read_beam, read_locomo
from tests.programs.search_bench.figures import abstentions, recall, results_of, within_budget
from tests.programs.search_bench.rankers import fts5, ours

LINES = [
    "My kite is red and its tail is long.",
    "We paddled along the river.",
    "The oven is broken again.",
    "A plumber comes on Monday.",
]


def conversation(speaker: str) -> dict[str, Any]:
    """Return a conversation of LoCoMo."""
    first, second = LINES[:2], LINES[2:]
    return {
        "speaker_a": speaker,
        "session_1_date_time": "1:56 pm on 8 May, 2023",
        "session_1": [
            {"speaker": speaker, "dia_id": f"D1:{n}", "text": text, "blip_caption": "a photo"}
            for n, text in enumerate(first, 1)
        ],
        "session_2_date_time": "12:05 am on 9 June, 2023",
        "session_2": [
            {"speaker": "Bo", "dia_id": f"D2:{n}", "text": text} for n, text in enumerate(second, 1)
        ],
        "session_3_date_time": "without turns",
        "qa": [
            {"question": "What color is the kite?", "evidence": ["D1:1"], "category": 1},
            {"question": "Who comes?", "evidence": ["D2:02; D2:1", "D9:9"], "category": 2},
            {"question": "Without evidence", "category": 5},
        ],
    }


def write_chat(folder: Path) -> None:
    """Write a chat of BEAM."""
    (folder / "probing_questions").mkdir(parents=True)
    turns = [
        [
            {
                "id": 2 * n,
                "role": "user",
                "content": f"{text} ->-> {n},1",
                "time_anchor": f"March-0{n + 1}-2024",
            },
            {"id": 2 * n + 1, "role": "assistant", "content": "Fine."},
        ]
        for n, text in enumerate(LINES)
    ]
    (folder / "chat.json").write_text(json.dumps([{"batch_number": 1, "turns": turns}]))
    questions = {
        "abstention": [{"question": "Which medals did the goldfish win?", "source_chat_ids": [0]}],
        "fact": [
            {
                "question": "Where did we paddle?",
                "source_chat_ids": {"first": [2], "other": ["77"]},
            },
            {"question": "What comes on Monday?", "source_chat_ids": [6]},
        ],
    }
    (folder / "probing_questions" / "probing_questions.json").write_text(json.dumps(questions))


@pytest.fixture
def locomo(tmp_path: Path) -> Path:
    path = tmp_path / "locomo"
    path.mkdir()
    for name in ("26", "44"):
        (path / f"{name}.json").write_text(json.dumps(conversation("Ann")))
    return path


@pytest.fixture
def beam(tmp_path: Path) -> Path:
    for number in (1, 2, 10):
        write_chat(tmp_path / "chats" / "100K" / str(number))
    (tmp_path / "chats" / "100K" / "topics.json").write_text("{}")
    return tmp_path / "chats"


def test_locomo_is_read_with_its_speakers_times_and_evidence(locomo):
    first, second = read_locomo(locomo)
    assert (first.name, first.is_fitted, second.is_fitted) == ("26", True, False)
    assert [row.name for row in first.rows] == ["Ann", "Ann", "Bo", "Bo"]
    assert first.rows[0].text == f"{LINES[0]} [a photo]"
    assert first.rows[0].created_at == datetime(2023, 5, 8, 13, 56, tzinfo=UTC)
    assert first.rows[2].created_at == datetime(2023, 6, 9, 0, 5, tzinfo=UTC)
    assert [question.evidence for question in first.questions] == [{0}, {2, 3}, set()]


def test_locomo_is_read_from_a_zip_and_from_one_file(locomo, tmp_path):
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for file in locomo.iterdir():
            archive.write(file, f"data/{file.name}")
    values = [
        {"sample_id": file.stem, "qa": (value := json.loads(file.read_bytes())).pop("qa"),
         "conversation": value}
        for file in locomo.iterdir()
    ]  # fmt: skip
    (tmp_path / "all.json").write_text(json.dumps(values))
    expected = read_locomo(locomo)
    assert read_locomo(tmp_path / "all.zip") == read_locomo(tmp_path / "all.json") == expected


def test_beam_is_read_by_number_with_the_last_time_and_evidence(beam):
    chats = read_beam(beam / "100K")
    assert [(chat.name, chat.is_fitted) for chat in chats] == [
        ("1", True),
        ("2", False),
        ("10", False),
    ]
    assert [row.text for row in chats[0].rows[::2]] == LINES
    assert [row.role for row in chats[0].rows[:3]] == ["user", "assistant", "user"]
    assert chats[0].rows[3].created_at == datetime(2024, 3, 2, tzinfo=UTC)
    assert [question.evidence for question in chats[0].questions] == [set(), {2}, {6}]


def test_another_form_is_refused(tmp_path):
    (tmp_path / "1.json").write_text('{"session_1": 5, "qa": []}')
    with pytest.raises(BadCorpus, match="Conversation 1"):
        read_locomo(tmp_path)
    (tmp_path / "empty").mkdir()
    for read in (read_locomo, read_beam):
        with pytest.raises(BadCorpus, match="has no"):
            read(tmp_path / "empty")


def test_figures_are_means_over_the_questions_with_evidence(locomo):
    dialogue = read_locomo(locomo)[0]
    results = results_of(dialogue, lambda question: [0, 2] if "kite" in question else [3])
    assert recall(results) == "75.0 / 75.0 (2)"
    assert abstentions(results) == "-"
    assert recall([]) == "-"


def test_rows_that_exceed_the_budget_are_left_out(beam):
    dialogue = read_beam(beam / "100K")[0]
    long = Row(role="user", text="word " * 5_000, created_at=dialogue.rows[0].created_at)
    dialogue = Dialogue(
        name="", rows=[long, *dialogue.rows], questions=[], is_fitted=False
    )  # fmt: skip
    assert within_budget(dialogue, [1, 0, 2]) == {1, 2}


def test_rankers_return_the_best_rows_first(locomo):
    dialogue = read_locomo(locomo)[0]
    for opened in (ours, fts5):
        with opened(dialogue) as rank:
            assert rank("What did they say about paddling?")[0] == 1
            assert rank("?!") == rank("xyzzy") == []
    with ours(dialogue, min_relevance=5.0) as rank:
        assert rank("paddling") == []


def bench(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the program."""
    return subprocess.run(  # noqa: S603  # our own command line
        [sys.executable, "-m", "tests.programs.search_bench", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.long
def test_the_program_prints_a_table_for_each_corpus(locomo, beam):
    done = bench("--locomo", locomo, "--beam", beam, "--threshold")
    assert (done.returncode, done.stderr) == (0, "")
    assert "LoCoMo: 8 rows\nNot held out: 26\n" in done.stdout
    assert "BEAM 100K: 24 rows\nNot held out: 1\n" in done.stdout
    assert "search blocks, threshold" in done.stdout
    assert "100.0 / 100.0 (6)" in done.stdout
    is_postgres = os.environ.get("DATABASE_URL", "").startswith("postgres")
    assert ("PostgreSQL, ts_rank_cd" in done.stdout) == is_postgres


@pytest.mark.long
def test_the_program_states_what_it_cannot_read(tmp_path):
    for arguments in ([], ["--beam", tmp_path], ["--locomo", tmp_path / "none.json"]):
        done = bench(*arguments)
        assert done.returncode == 1
        assert done.stderr.strip()
        assert "Traceback" not in done.stderr
