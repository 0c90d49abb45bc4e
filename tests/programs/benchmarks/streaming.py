"""Measure the CPU time of the chat page while it shows a streamed reply, in Chromium on Linux.

Usage: `python -m tests.programs.benchmarks.streaming [FOLDER...]`. A folder contains the static
files of a version, such as `chatmemory/static/chatmemory` in a `git worktree` of an older commit;
the default is this version. All versions show the same reply at the same time, each in its own
browser.
"""

from __future__ import annotations

import asyncio
import json
import mimetypes
import os
import shutil
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
django.setup()  # before anything below imports a model

from playwright.async_api import async_playwright  # noqa: E402  # after the setup
from websockets.asyncio.server import ServerConnection, serve  # noqa: E402
from websockets.datastructures import Headers  # noqa: E402
from websockets.http11 import Request, Response  # noqa: E402

from chatmemory.rendering.markdown import MarkdownStream  # noqa: E402
from tests.browsers import FLAGS  # noqa: E402
from tests.pages.test_chat_js import FILES, PAGE, row, running  # noqa: E402
from tests.pages.test_live_markdown import REPLY  # noqa: E402

CHARS = 20_000
CODE = "```python\n" + "".join(f"value_{n} = compute({n}, 'text')\n" for n in range(1_000))
TEXTS = {"tables, code, lists, formulas": f"{REPLY}\n\n" * 60, "one code block": CODE}
FRAME_CHARS = 16
"""Two pieces of a model that sends 50 in a second: the server sends at most 25 frames."""
FRAME_SECONDS = 0.04
MESSAGES = 40
"""Messages before the reply."""
STEP = {"turn": "t", "step": 0}


class Site:
    """Serves the static files of a version, and a session in which a turn runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket: asyncio.Future[ServerConnection] = asyncio.Future()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """Serve the site; return its address."""
        answer = self._respond
        async with serve(
            self._chat, "127.0.0.1", process_request=answer, compression=None
        ) as server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"

    async def put(self, frame: dict[str, object]) -> None:
        """Send a frame to the page."""
        await self.socket.result().send(json.dumps(frame))

    def _respond(self, connection: ServerConnection, request: Request) -> Response | None:
        if request.path.startswith("/ws/"):
            return None
        if request.path == "/":
            return _response(200, PAGE.encode(), "text/html")
        file = self.folder / request.path.removeprefix("/")
        if not file.is_file():
            return _response(404, b"", "text/plain")
        return _response(200, file.read_bytes(), mimetypes.guess_type(file)[0] or "text/plain")

    async def _chat(self, socket: ServerConnection) -> None:
        await socket.recv()  # hello
        self.socket.set_result(socket)
        for frame in _opening():
            await self.put(frame)
        await socket.wait_closed()


def _response(status: int, body: bytes, kind: str) -> Response:
    headers = Headers({"Content-Type": kind, "Content-Length": str(len(body))})
    return Response(status, "", headers, body)


def _opening() -> Iterator[dict[str, object]]:
    """Yield what the server sends to a page that opens a session."""
    limits = {"max_message_chars": 32_000, "max_frame_bytes": 200_000}
    yield {"type": "welcome", "v": 1, "session": {"key": "k", "title": ""}, "limits": limits}
    for seq in range(1, MESSAGES + 1):
        role = ("user", "assistant")[seq % 2 - 1]
        yield {"type": "message", **row(seq, "Some words. " * 40, role=role)}
    numbers = {"epoch": 7, "first_seq": 1, "last_seq": MESSAGES, "revision": 0}
    about = {"key": "k", "title": "", "archived": False, "superseded": [], "waiting": []}
    yield {"type": "session", **about, **numbers, "running": running("t")}
    yield {"type": "synced", "cursor": "c1"}


def frames_of(text: str) -> Iterator[list[dict[str, object]]]:
    """Yield the frames of a reply, as the server sends them in each tick."""
    stream = MarkdownStream()
    closed = 0
    for begin in range(0, len(text), FRAME_CHARS):
        piece = text[begin : begin + FRAME_CHARS]
        frames: list[dict[str, object]] = [
            {"type": "delta" if begin else "snapshot", **STEP, "text": piece}
        ]
        if html := "".join(stream.feed(piece)):
            place = {"start": closed, "end": stream.closed_chars}
            closed = stream.closed_chars
            frames.append({"type": "block", **STEP, **place, "html": html})
        yield frames


async def show(text: str, sites: Sequence[Site]) -> None:
    """Stream a reply to the pages of all sites."""
    begin = time.monotonic()
    for number, frames in enumerate(frames_of(text), 1):
        for site in sites:
            for frame in frames:
                await site.put(frame)
        await asyncio.sleep(begin + number * FRAME_SECONDS - time.monotonic())


def cpu_seconds(pids: Sequence[int]) -> float:
    """Return the CPU time that all threads of these processes have used."""
    used = 0
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            used += int((task / "schedstat").read_text().split()[0])
    return used / 1e9


async def measure(text: str, folders: Sequence[Path], chromium: str) -> list[float]:
    """Return the CPU time of the page's process for each version, as a part of a core."""
    sites = [Site(folder) for folder in folders]
    renderers: list[list[int]] = []
    async with AsyncExitStack() as stack:
        playwright = await stack.enter_async_context(async_playwright())
        for site in sites:
            address = await stack.enter_async_context(site.listening())
            browser = await playwright.chromium.launch(executable_path=chromium, args=FLAGS)
            stack.push_async_callback(browser.close)
            page = await browser.new_page(viewport={"width": 1200, "height": 800})
            await page.goto(address)
            await page.locator(f"[data-seq='{MESSAGES}']").wait_for()
            session = await browser.new_browser_cdp_session()
            processes = (await session.send("SystemInfo.getProcessInfo"))["processInfo"]
            renderers.append([one["id"] for one in processes if one["type"] == "renderer"])
        await asyncio.sleep(1)  # the pages have been drawn
        before = [cpu_seconds(pids) for pids in renderers]
        begin = time.monotonic()
        await show(text, sites)
        seconds = time.monotonic() - begin
        after = [cpu_seconds(pids) for pids in renderers]
    return [(end - start) / seconds for start, end in zip(before, after, strict=True)]


def main(folders: Sequence[Path], chars: int = CHARS) -> None:
    chromium = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    assert chromium, "Chromium is not installed"
    for name, text in TEXTS.items():
        parts = asyncio.run(measure(text[:chars], folders, chromium))
        for folder, part in zip(folders, parts, strict=True):
            sys.stdout.write(f"{part:6.1%}  {name:30}  {folder}\n")


if __name__ == "__main__":
    given = [Path(name).resolve() for name in sys.argv[1:]]
    main(given or [FILES])
