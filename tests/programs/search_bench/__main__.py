"""Measure how much of the evidence of questions a search finds, in LoCoMo and BEAM.

Usage: `python -m tests.programs.search_bench --locomo PATH --beam PATH`, or `make search-bench`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from importlib.util import find_spec
from pathlib import Path

from tests.programs.search_bench.corpora import BadCorpus, Dialogue, read_beam, read_locomo
from tests.programs.search_bench.figures import (
    BUDGET_TOKENS,
    TOP,
    Result,
    abstentions,
    recall,
    results_of,
)
from tests.programs.search_bench.rankers import (
    Ranker,
    fts5,
    ours,
    ours_with_threshold,
    postgres,
)

Opened = Callable[[Dialogue], AbstractContextManager[Ranker]]

SIZES = ("100K", "500K")
"""Folders of BEAM."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables; return the exit status. Exits with a message if a corpus is unreadable."""
    options = _parser().parse_args(arguments)
    if find_spec("snowballstemmer") is None:
        sys.exit("snowballstemmer is not installed. `make search-bench` installs it.")
    try:
        corpora = _read(options.locomo, options.beam)
    except (OSError, json.JSONDecodeError, BadCorpus) as error:
        sys.exit(str(error))
    if not corpora:
        sys.exit("Pass --locomo or --beam.")
    sys.stdout.write(
        f"Share of evidence in the first {TOP} rows / within {BUDGET_TOKENS:,} tokens, in percent"
        " (questions)\n"
    )
    for corpus, dialogues in corpora.items():
        _write_table(corpus, dialogues, _rankers(with_threshold=options.threshold))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.programs.search_bench",
        description="Measure how much of the evidence of questions a search finds.",
    )
    parser.add_argument(
        "--locomo",
        type=Path,
        metavar="PATH",
        help="locomo10.json, or a folder or zip with a file for each conversation",
    )
    parser.add_argument(
        "--beam", type=Path, metavar="PATH", help="the folder that contains 100K and 500K"
    )
    parser.add_argument(
        "--threshold",
        action="store_true",
        help="also rank with the threshold, and count the questions that find nothing",
    )
    return parser


def _read(locomo: Path | None, beam: Path | None) -> dict[str, list[Dialogue]]:
    corpora = {"LoCoMo": read_locomo(locomo)} if locomo else {}
    if beam:
        sizes = [size for size in SIZES if (beam / size).is_dir()]
        if not sizes:
            raise BadCorpus(f"{beam} contains neither {' nor '.join(SIZES)}.")
        corpora |= {f"BEAM {size}": read_beam(beam / size) for size in sizes}
    return corpora


def _rankers(*, with_threshold: bool) -> dict[str, Opened]:
    rankers: dict[str, Opened] = {"FTS5, porter, no stop words": fts5}
    if os.environ.get("DATABASE_URL", "").startswith("postgres"):
        rankers["PostgreSQL, ts_rank_cd"] = postgres
    rankers["search blocks"] = ours
    if with_threshold:
        rankers["search blocks, threshold"] = ours_with_threshold
    return rankers


def _write_table(corpus: str, dialogues: Sequence[Dialogue], rankers: dict[str, Opened]) -> None:
    fitted = ", ".join(dialogue.name for dialogue in dialogues if dialogue.is_fitted)
    sys.stdout.write(f"\n{corpus}: {sum(len(dialogue.rows) for dialogue in dialogues):,} rows\n")
    sys.stdout.write(f"Not held out: {fitted}\n")
    sys.stdout.write(f"{'':<30}{'held out':>20}{'all':>20}{'found nothing':>16}{'held out':>12}\n")
    for name, opened in rankers.items():
        results: list[Result] = []
        for dialogue in dialogues:
            with opened(dialogue) as rank:
                results += results_of(dialogue, rank)
        held_out = [result for result in results if not result.is_fitted]
        sys.stdout.write(
            f"{name:<30}{recall(held_out):>20}{recall(results):>20}"
            f"{abstentions(results):>16}{abstentions(held_out):>12}\n"
        )
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
