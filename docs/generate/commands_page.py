"""Generates docs/reference/commands.md from the parsers of the commands."""

from __future__ import annotations

import argparse
import ast
import inspect
from collections.abc import Iterator, Mapping
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import django
from django.conf import settings
from django.core.management import BaseCommand, find_commands, load_command_class

if not settings.configured:  # run as a script
    names = ("admin", "auth", "contenttypes", "messages", "sessions")
    apps = [*(f"django.contrib.{name}" for name in names), "chatmemory"]
    settings.configure(
        INSTALLED_APPS=[*apps, "chatmemory.search", "chatmemory.statistics", "chatmemory.imports"],
    )
    django.setup()

ROOT = Path(__file__).resolve().parents[2]

INTRO = """# The commands

Each is run as `python manage.py NAME`, and has the options of all commands of Django too. Required
options are **bold**. [The handbook](../howto/handbook.md) describes how to use them.
`python docs/generate/commands_page.py` generates this page from the parsers.

Each that changes conversations can be stopped with Ctrl-C and run again. Long ones show their
progress on standard error, on a terminal or with `--progress`; `--no-progress` hides it. With
`--json` each line of standard output is one object, as described at the command. The last line is
the result; lines before it are single conversations, findings or erasures. Errors are text on
standard error, also with `--json`.
"""

EXITS = """## Exit statuses

| status | meaning |
| --- | --- |
| 0 | Done, or nothing to do. |
"""

MODULES = ("chatmemory.management.exits", "chatmemory.management.interruptible")
"""The modules with the exit statuses."""

SHARED = ("--json", "--progress", "--no-progress")
"""Options that the introduction describes."""

RESULTS: Mapping[str, str] = {
    "chatmemory_action": "A line per conversation: `session`, `scope`, `key`, `outcome`, "
    "`messages`, and `entry`, or in a dry run `waiting`, `ends_run`, `partial_chars`; result: "
    "`action`, `done`, `skipped` (number by outcome), `messages`, `dry_run`.",
    "chatmemory_redact": "A line per text: `session`, `scope`, `key`, `field` (`message`, `turn`, "
    "`feedback`, `title`, `instructions`, `metadata`, `note`), `state` (`shown`, `replaced`, "
    "`withdrawn`, `hidden`, `purged`, `waiting`, `running`, `redacted`), `seq`, `role`, `turn`, "
    "`note`, `outcome`, `entry`, `dry_run`; result, only with `--find-file`: `done`, `skipped` "
    "(number by outcome), `replying` (conversations), `dry_run`.",
    "chatmemory_note": "`list`: a line per note: `note`, `created_at`, `by`, `text`; result: "
    "`session`, `notes`. Otherwise `session`, `action`, `outcome`, `entry`, `dry_run`.",
    "chatmemory_person": "A line per conversation: `session`, `key`, `state` (`open`, `archived`, "
    "`expired`, `purged`, `importing`), `held_at`, `messages`, `hidden_messages`, `created_at`, "
    "`last_message_at`; a line per erasure; result: `scope`, `sessions`, `archived`, `held`, "
    "`purged`, `messages`, `hidden_messages`, `turns`, `feedback`, `derived`, `tokens`, "
    "`first_created_at`, `last_message_at`, `erasures`, `unknown_key`. With `--erased`: a line per "
    "erasure; result: `erasures`, `unknown_key`, `is_erased`.",
    "chatmemory_maintain": "A line per command: `command`, `state` (`done`, `failed`, `not_due`; "
    "in a dry run `due`), `seconds`, `output` (text); or one line with the `state` `elsewhere`, "
    "also where a run ends because another process has taken over.",
    "chatmemory_expire": "`removed` (`sessions` and `messages` by reason), `left`, `dry_run`.",
    "chatmemory_vacuum": "A line with `sessions`, `messages`, `turns`, `emptied` (withdrawn "
    "messages that lost their content), `left`, `dry_run`, then as `chatmemory_audit_verify`.",
    "chatmemory_search": "`index`: `blocks`, `sessions`, `complete`. `check`: a line per wrong "
    "block: `session`, `low`, `high`, `problem`; result, if none is: `wrong`. `drop`: `blocks`.",
    "chatmemory_statistics": "`turns`, `messages`, `sessions`, `feedback`, `until`.",
    "chatmemory_audit_verify": "A line per finding: `code`, `number`, `sentence`; result: "
    "`findings`, `sealed`, `unsealed`, `head`.",
    "chatmemory_check": "A line per finding: `code`, `session_pk`, `sentence`, `from_seq`, "
    "`to_seq`, `is_fixable`, `is_fixed`; result: `found`, `fixed`.",
    "chatmemory_recover": "`interrupted`, `requeued`, `cancelled`, `failed`.",
    "chatmemory_erase": "`scope`, `sessions`, `messages`, `turns`, `derived`, `held`, `receipt`, "
    "`dry_run`.",
    "chatmemory_erased": "A line per erasure; result: `scope`, `sessions`, `unknown_key`, "
    "`is_erased`.",
    "chatmemory_export": "`format`, `sessions`, `messages`, `output`, `dry_run`. It needs "
    "`--output` or `--dry-run`.",
    "chatmemory_import": "`messages`, `new`, `existing`, `skipped`, `derived`, `bad`, `more` "
    "(further numbers by name), `errors` (numbers by code), `dry_run`.",
    "chatmemory_import_langchain": "What `chatmemory_import` prints.",
    "chatmemory_restored": "`sessions`, `interrupted`, `cancelled`, `kept`, `failed`, `erasures`.",
    "chatmemory_roles": "A line per group: `group`, `permissions`, `dry_run`.",
    "chatmemory_init": "A line per part: `file`, `code`, `optional`; result: `missing`.",
}
"""What each command with `--json` prints."""


def page() -> str:
    """Return the page as Markdown: the commands in alphabetical order, then the statuses."""
    statuses = (
        f"| {status} | {text} |\n" for module in MODULES for status, text in _statuses(module)
    )
    sections = (_section(name, command) for name, command in sorted(commands().items()))
    return "\n".join([INTRO, *sections, EXITS + "".join(statuses)])


def commands() -> dict[str, BaseCommand]:
    """Return the commands of the core and of the optional apps, by name."""
    found: dict[str, BaseCommand] = {}
    for folder in sorted((ROOT / "chatmemory").rglob("management")):
        app = ".".join(folder.parent.relative_to(ROOT).parts)
        found |= {name: load_command_class(app, name) for name in find_commands(str(folder))}
    return found


def _section(name: str, command: BaseCommand) -> str:
    parser = command.create_parser("manage.py", name)
    options = [*_options(parser)]
    lines = [f"## `{name}`\n", f"{' '.join(str(parser.description).split())}\n"]
    rows = [_row(parser, option) for option in options if not {*option.option_strings} & {*SHARED}]
    if rows:
        lines += ["| argument | meaning |", "| --- | --- |", *rows, ""]
    lines += [f"{text}\n" for text in _groups(parser)]
    if any("--json" in option.option_strings for option in options):
        lines.append(f"**With `--json`:** {RESULTS[name]}\n")
    return "\n".join(lines)


def _options(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the arguments that not all commands of Django have."""
    plain = BaseCommand().create_parser("manage.py", "plain")
    shared = {text for action in plain._actions for text in action.option_strings}  # noqa: SLF001  # argparse has no other way
    for action in parser._actions:  # noqa: SLF001
        if not {*action.option_strings} & shared:
            yield action


def _row(parser: argparse.ArgumentParser, option: argparse.Action) -> str:
    formatter = parser._get_formatter()  # noqa: SLF001  # as the parser's own help
    names = ", ".join(option.option_strings) or option.dest
    value = formatter._format_args(option, option.dest.upper()) if option.nargs != 0 else ""  # noqa: SLF001
    if option.choices or not option.option_strings:
        value = "" if not option.option_strings else "…"
    shown = f"`{f'{names} {value}'.strip()}`"
    shown = f"**{shown}**" if option.required else shown
    text = formatter._expand_help(option) if option.help else ""  # noqa: SLF001
    if option.choices:
        text += f"{'; ' if text else ''}{', '.join(f'`{choice}`' for choice in option.choices)}"
    return f"| {shown} | {text.replace('|', chr(92) + '|')} |"


def _groups(parser: argparse.ArgumentParser) -> Iterator[str]:
    for group in parser._mutually_exclusive_groups:  # noqa: SLF001
        names = [f"`{action.option_strings[0]}`" for action in group._group_actions]  # noqa: SLF001
        if len(names) > 1:
            yield f"{'Exactly' if group.required else 'At most'} one of {', '.join(names)}."


def _statuses(name: str) -> Iterator[tuple[int, str]]:
    """Yield the constants of a module that are statuses, with their docstrings."""
    module = import_module(name)
    body = ast.parse(inspect.getsource(module)).body
    for assigned, documented in pairwise(body):
        match assigned, documented:
            case (
                ast.Assign(targets=[ast.Name(id=constant)]),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                yield int(getattr(module, constant)), " ".join(text.split())


if __name__ == "__main__":
    (Path(__file__).resolve().parents[1] / "reference/commands.md").write_text(page())
