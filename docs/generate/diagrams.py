"""Generates docs/images/layers.svg and docs/images/turn.svg from the contract and its text."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from html import escape
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1]

RESPONSIBILITIES = {
    "statistics | imports | search | langgraph | agents": "optional: figures, search, agents, …",
    "testing": "the memory contract, fakes and fixtures for hosts",
    "apps": "ready()",
    "receivers": "connects signals to hub and runner",
    "urls | accounts | middleware | routing | templatetags": "addresses; sign-in; the widget",
    "streams": "streams over HTTP for front ends of other projects",
    "consumers | api | management": "websockets, REST, commands: parse, call one service, answer",
    "live": "hub, feeds and sweep of sockets; runner, keeper and drain of turns",
    "responders": "the setting RESPONDER as code that streams a reply",
    "memory | checks | pages | admin": "entry points that use services alone",
    "formats | derived": "file formats; rows that other apps make from messages",
    "langchain": "history class and with_memory; LangChain's messages as dicts",
    "services": "every write: one function, one lock, one transaction",
    "window": "the messages that the model is given",
    "access": "actors, addresses, logins, tickets, rates",
    "database": "how to write: locks, inserts, retries, threads, after commit",
    "protocol | models | client": "frames; tables and querysets; a client for other programs",
    "rendering | csp": "Markdown to safe HTML; the policy of our pages",
    "codec": "strict JSON, cleaning, a message as a row and back",
    "conf | errors | signals | startup": "settings; errors by code; signals; start of a server",
    "logs": "errors in the log without content",
}
"""One entry for each layer of the import contract in pyproject.toml."""

TURN = """
browser > consumer: send {client_id, text}
consumer > services: admit_turn
services > database: COMMIT the user's message with its turn, claimed for this process
consumer > runner: run the claimed turn (a waiting one is claimed later, by any process)
consumer > browser: ok {turn, seq}
runner > responder: the window
responder > runner: text
runner > hub: text
hub > browser: snapshot, delta (each socket from its own offset)
runner > database: each second: renew the lease, save partial text
responder > runner: the last message
runner > services: finish_turn (refused if the fence has changed)
services > database: COMMIT the reply with the turn's end
services > hub: signal after commit
hub > consumer: wake the writer; notify other processes
consumer > database: read the rows after the last sent (on PostgreSQL usually from memory)
consumer > browser: message, session
"""
"""A turn on an idle session: `from > to: what`, in order of time."""

LANES = ("browser", "consumer", "services", "database", "runner", "responder", "hub")

STYLE = """
text { font-family: system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1f2328; }
.page { fill: #ffffff; }
.label { stroke: #ffffff; stroke-width: 4; paint-order: stroke; }
.name { font-weight: 600; }
.quiet { fill: #57606a; }
.box { fill: #f6f8fa; stroke: #afb8c1; }
.strong { fill: #ddf4ff; stroke: #0969da; }
.line { stroke: #afb8c1; }
.arrow { stroke: #57606a; stroke-width: 1.3; }
.head { fill: #57606a; }
.commit { stroke: #0969da; stroke-width: 2.2; }
.commit-head { fill: #0969da; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; }
  .page { fill: #0d1117; }
  .label { stroke: #0d1117; }
  .quiet { fill: #9da7b3; }
  .box { fill: #161b22; stroke: #484f58; }
  .strong { fill: #0c2d4d; stroke: #4493f8; }
  .line { stroke: #484f58; }
  .arrow { stroke: #9da7b3; }
  .head { fill: #9da7b3; }
  .commit { stroke: #4493f8; }
  .commit-head { fill: #4493f8; }
}
"""


def layers() -> str:
    """Return the diagram of the layers, from top to bottom as the import contract lists them."""
    contracts = tomllib.loads((DOCS.parent / "pyproject.toml").read_text())
    rows = contracts["tool"]["importlinter"]["contracts"][0]["layers"]
    if rows != list(RESPONSIBILITIES):
        raise ValueError("RESPONSIBILITIES must list the layers of the import contract, in order.")
    return _svg(880, 40 * len(rows) + 48, "The layers of chatmemory", _layer_rows(rows))


def _layer_rows(rows: list[str]) -> Iterator[str]:
    yield _text(16, 24, "A package imports only from the rows below it.", "quiet")
    for number, row in enumerate(rows):
        y = 40 + 40 * number
        kind = "strong" if row == "services" else "box"
        yield f'<rect class="{kind}" x="16" y="{y}" width="848" height="34" rx="6"/>'
        yield _text(32, y + 22, row.replace(" | ", "  ·  "), "name")
        yield _text(400, y + 22, RESPONSIBILITIES[row], "quiet")


def turn() -> str:
    """Return the sequence diagram of a turn."""
    steps = [line.split(": ", 1) for line in TURN.strip().splitlines()]
    return _svg(1080, 46 * len(steps) + 72, "A turn, from the send to the reply", _turn(steps))


def _turn(steps: list[list[str]]) -> Iterator[str]:
    bottom = 46 * len(steps) + 60
    for lane in LANES:
        x = _lane_x(lane)
        kind = "strong" if lane == "database" else "box"
        yield f'<line class="line" x1="{x}" y1="44" x2="{x}" y2="{bottom}" stroke-dasharray="3 4"/>'
        yield f'<rect class="{kind}" x="{x - 54}" y="14" width="108" height="30" rx="6"/>'
        yield _text(x, 34, lane, "name", anchor="middle")
    for number, (lanes, label) in enumerate(steps):
        start, end = (_lane_x(lane) for lane in lanes.split(" > "))
        y = 92 + 46 * number
        is_commit = label.startswith("COMMIT")
        yield from _arrow(start, end, y, is_commit=is_commit)
        # The label begins at the left end of its arrow, or ends at the right border.
        left = min(start, end) + 10
        is_long = left + 7.2 * len(label) > 1064
        x, anchor = (max(start, end) - 10, "end") if is_long else (left, "start")
        yield _text(x, y - 7, label, "name label" if is_commit else "label", anchor=anchor)


def _lane_x(lane: str) -> int:
    return 80 + 152 * LANES.index(lane)


def _arrow(start: int, end: int, y: int, *, is_commit: bool) -> Iterator[str]:
    back = end - 9 if end > start else end + 9
    line, head = ("commit", "commit-head") if is_commit else ("arrow", "head")
    yield f'<line class="{line}" x1="{start}" y1="{y}" x2="{back}" y2="{y}"/>'
    yield f'<path class="{head}" d="M{end} {y} L{back} {y - 4.5} L{back} {y + 4.5} Z"/>'


def _text(x: float, y: float, text: str, kind: str, *, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(width: int, height: int, title: str, parts: Iterator[str]) -> str:
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-size="14">'
    page = f'<rect class="page" width="{width}" height="{height}" rx="8"/>'
    body = "\n".join([page, *parts])
    return f"{head}\n<title>{escape(title)}</title>\n<style>{STYLE}</style>\n{body}\n</svg>\n"


if __name__ == "__main__":
    (DOCS / "images/layers.svg").write_text(layers())
    (DOCS / "images/turn.svg").write_text(turn())
