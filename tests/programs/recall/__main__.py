"""Replay dialogues against servers, kill these half way, and count the facts the model is given.

Usage: `python -m tests.programs.recall FILE`, or `make recall ARGS=FILE`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
django.setup()  # before anything below imports a model

from django.conf import settings  # noqa: E402  # after the setup

from chatmemory.errors import BadInput  # noqa: E402
from tests.programs.recall.dialogues import Dialogue, read_dialogues  # noqa: E402
from tests.programs.recall.replay import Replay  # noqa: E402
from tests.programs.recall.servers import Servers, temporary_database  # noqa: E402


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and print the table; return the exit status.

    Exits with a message if the file cannot be read, has no facts, or a server fails.
    """
    options = _parser().parse_args(arguments)
    if find_spec("uvicorn") is None or find_spec("websockets") is None:
        sys.exit("Uvicorn and websockets are not installed. `make recall` installs them.")
    dialogues = _load_dialogues(options.file, options.limit)
    # An exception, so that the context managers below stop the servers and drop the database.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        replay = _replay(dialogues, options.servers, options.memory)
    except (RuntimeError, TimeoutError) as error:
        sys.exit(str(error) or "The servers do not respond.")
    sys.stdout.write(f"{'':<38}{'facts':>6}{'given to the model':>20}{'in the answer':>20}\n")
    for count in replay.counts:
        sys.stdout.write(f"{count}\n")
    sys.stdout.write(f"\nMemory: {options.memory}. {replay.summary}\n")
    lowest = min(count.given / count.facts for count in replay.counts if count.facts)
    if lowest < options.at_least:
        sys.stderr.write(f"{lowest:.1%} given to the model, less than {options.at_least:.1%}.\n")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.programs.recall",
        description=(
            "Send the users' turns of dialogues over websockets to servers with a temporary "
            "database, kill the servers half way, send the rest, ask for each fact, and count the "
            'facts that the model is given. A line of the file is {"turns": [{"role": "human" or '
            '"ai", "text"}], "facts": [{"turn", "slot", "value"}]}.'
        ),
    )
    parser.add_argument("file", type=Path)
    parser.add_argument(
        "--memory",
        choices=["window", "process"],
        default="window",
        help="what the model is given: its window, or what its process remembers in a dict",
    )
    parser.add_argument(
        "--at-least",
        type=float,
        default=0.98,
        metavar="SHARE",
        help="fail if the model is given a smaller share of the facts; default 0.98",
    )
    parser.add_argument(
        "--servers",
        type=int,
        default=2 if os.environ.get("REDIS_URL") else 1,
        metavar="N",
        help="number of server processes; default 2 with REDIS_URL, else 1",
    )
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N dialogues")
    return parser


def _load_dialogues(file: Path, limit: int | None) -> list[Dialogue]:
    try:
        dialogues = list(islice(read_dialogues(file), limit))
    except (OSError, BadInput) as error:
        sys.exit(str(error))
    if not any(dialogue.facts for dialogue in dialogues):
        sys.exit("The file contains no facts.")
    return dialogues


def _replay(dialogues: Sequence[Dialogue], servers: int, memory: str) -> Replay:
    with (
        tempfile.TemporaryDirectory(prefix="chatmemory-recall-") as name,
        temporary_database(Path(name)) as url,
    ):
        folder = Path(name)
        env = {
            "DJANGO_SETTINGS_MODULE": "tests.programs.recall.settings",
            "DATABASE_URL": url,
            "DEBUG": "0",
            "SECRET_KEY": settings.SECRET_KEY,
            "RECALL_FILE": str(folder / "inputs.jsonl"),
            "RECALL_MEMORY": memory,
            "RECALL_NAME": f"recall-{secrets.token_hex(4)}",
        }
        with closing(Servers(servers, env, folder / "log")) as running:
            replay = Replay(dialogues, running, folder / "inputs.jsonl")
            asyncio.run(replay.run())
        return replay


if __name__ == "__main__":
    sys.exit(main())
