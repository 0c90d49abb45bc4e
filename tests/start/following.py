"""A reader who does what the pages of a tutorial state, in their order."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Page, expect

from tests.browsers import TIMEOUT_MS, Chat
from tests.servers import is_listening, wait_for

STEP = re.compile(
    r"^ *```(?P<language>\w+)\n(?P<block>.*?)^ *```$"
    r"|\b(?P<terminal>first|second|third|new) terminal"
    r"|(?P<window>private window)"
    r"|<(?P<address>http://[^>]+)>"
    r"|\*\*(?P<field>[^*]+)\*\*\s+`(?P<value>[^`]+)`"
    r"|\*\*(?P<label>[^*]+)\*\*"
    r"|(?<![*\w])\*(?P<shown>[^*]+)\*(?![*\w])"
    r"|[Ss]top\s+`(?P<stopped>[^`]+)`"
    r"|(?:ends with|prints)\s+`(?P<printed>[^`]+)`",
    re.MULTILINE | re.DOTALL,
)
"""What a page asks for: bold is a label to click or to fill, italic a text to see."""

TITLE = re.compile(r"(?:# |<!-- |\{# )(?P<file>[\w./]+)(?:: (?P<how>[\w ]+))?(?: -->| #\})?\n")
GROUP = re.compile(
    r"^# (\S+): add at the end\n(.*?)(?=^# \S+: add at|^# then run|^# optional, |\Z)",
    re.MULTILINE | re.DOTALL,
)
SERVER = re.compile(r"runserver|model\.py|uvicorn")
REPLY = ".cm-row.cm-assistant:not([data-empty])"


class Reader:
    """Works in a folder, with terminals, servers and a browser."""

    def __init__(
        self, folder: Path, browser: Browser, replaced: Mapping[str, str], env: Mapping[str, str]
    ) -> None:
        """`replaced` are texts of the pages and what they are for this reader."""
        self.folder = folder
        self.browser = browser
        self.replaced = replaced
        self.env = env
        self.output = ""
        """What the last command printed."""
        self._terminal = "first"
        self._states: defaultdict[str, list[str]] = defaultdict(list)
        self._servers: dict[str, tuple[str, subprocess.Popen[bytes]]] = {}
        self._is_stale = False
        self._page: Page | None = None

    @property
    def page(self) -> Page:
        return self._page or self.use_window()

    def follow(self, page: Path, *, heading: str = "") -> None:
        """Do each step of a page, or of one of its chapters."""
        text = page.read_text()
        for name, value in self.replaced.items():
            text = text.replace(name, value)
        start = text.index(f"\n## {heading}\n") if heading else 0
        end = text.find("\n## ", start + 1) if heading else -1
        for step in STEP.finditer(text, start, len(text) if end < 0 else end):
            given = {name: value for name, value in step.groupdict().items() if value is not None}
            line = text.count("\n", 0, step.start()) + 1
            try:
                self._do(**given)
            except Exception as error:
                error.add_note(f"{page.name}:{line}: {given}\n{self._logs()}")
                raise

    def _do(self, **step: str) -> None:
        match step:
            case {"language": "sh", "block": block}:
                for line in block.replace("\\\n", "").splitlines():
                    self.run(line.strip())
            case {"language": "text", "block": block} if block.startswith(("You: ", "Bot: ")):
                self.talk(block)
            case {"language": "text", "block": block}:
                self.check_printed(block.strip())
            case {"language": "cron", "block": block}:
                self._terminal = "cron"  # whose shell has no environment
                for line in block.splitlines():
                    self.run(line.split(maxsplit=5)[5])
            case {"block": block}:
                self.write(block)
            case {"terminal": name}:
                self._terminal = name
            case {"window": _}:
                self.use_window()
            case {"address": address}:
                self.open(address)
            case {"field": name, "value": value}:
                self.fill(name, value)
            case {"label": label}:
                self.click(label)
            case {"shown": shown}:
                expect(self.page.get_by_text(shown).first).to_be_visible()
            case {"stopped": name}:
                self.stop(name)
            case {"printed": printed}:
                self.check_printed(printed)

    # Terminals

    def run(self, line: str) -> None:
        """Run a line in the terminal; a server continues in the background."""
        line = re.sub(r"^python3\b", sys.executable, line)
        state = self._states[self._terminal]
        if server := SERVER.search(line):
            self.start(server[0], "; ".join([*state, f"exec {line}"]))
            return
        done = subprocess.run(  # noqa: S603  # a command of our own page
            ["/bin/bash", "-ec", "; ".join([*state, line])],
            cwd=self.folder,
            env={**self.env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        self.output = done.stdout
        if re.match(r"export |\. |set ", line):
            state.append(line)
        if "chatmemory_init" in line and done.returncode:
            self._add_lines()
        else:
            assert done.returncode == 0, f"{line}\n{self.output}"
        if " -m venv " in line:
            self._link_packages()
        self._is_stale = True

    def check_printed(self, text: str) -> None:
        assert text in self.output, self.output

    def _add_lines(self) -> None:
        """Add what `chatmemory_init` printed, as its titles state."""
        groups = GROUP.findall(self.output)
        assert groups, self.output
        for file, code in groups:
            with (self.folder / file).open("a") as out:
                out.write(f"\n{code}")

    def _link_packages(self) -> None:
        """Use the installed packages: only chatmemory itself is installed in the environment."""
        [packages] = (self.folder / ".venv").glob("lib/*/site-packages")
        found = [path for path in sys.path if path.endswith("site-packages")]
        (packages / "base.pth").write_text("\n".join(found))
        for name, module in (("django-admin", "django"), ("uvicorn", "uvicorn")):
            program = self.folder / ".venv" / "bin" / name
            program.write_text(f'#!/bin/sh\nexec python -m {module} "$@"\n')
            program.chmod(0o755)

    def start(self, name: str, command: str) -> None:
        """Start a server, in place of the one with this name."""
        self.stop(name)
        source = (self.folder / name).read_text() if name.endswith(".py") else command
        port, log = int(re.findall(r"\b\d{4,5}\b", source)[-1]), self._log(name)
        with log.open("ab") as out:
            process = subprocess.Popen(  # noqa: S603  # a command of our own page
                ["/bin/bash", "-ec", command],
                cwd=self.folder,
                env={**self.env},
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        self._servers[name] = command, process
        wait_for(lambda: is_listening(port), f"{name} does not start", log)
        self._is_stale = False

    def stop(self, name: str) -> None:
        if server := self._servers.pop(name, None):
            with suppress(ProcessLookupError):
                os.killpg(server[1].pid, signal.SIGKILL)
            server[1].wait()

    def close(self) -> None:
        for name in [*self._servers]:
            self.stop(name)

    def _log(self, name: str) -> Path:
        return self.folder.parent / f"{self.folder.name}-{name}.log"

    def _logs(self) -> str:
        """Return the ends of the logs of the servers, and of the last output."""
        logs = [f"{name}: {self._log(name).read_text()[-2_000:]}" for name in self._servers]
        return "\n".join([*logs, self.output[-2_000:]])

    # Files

    def write(self, block: str) -> None:
        """Write a file, or change it as the first line of the block states."""
        title = TITLE.match(block)
        assert title, f"a block without the name of its file: {block}"
        path = self.folder / title["file"]
        path.parent.mkdir(parents=True, exist_ok=True)
        match title["how"]:
            case None:
                path.write_text(block)
            case "add at the end":
                path.write_text(f"{path.read_text()}\n{block}")
            case "replace CHATMEMORY":
                text, count = re.subn(
                    r"^CHATMEMORY = \{\n.*?^\}\n",
                    block.replace("\\", r"\\"),
                    path.read_text(),
                    flags=re.MULTILINE | re.DOTALL,
                )
                assert count == 1, path
                path.write_text(text)
            case how:
                raise AssertionError(f"unknown: {how}")
        self._is_stale = True

    # The browser

    def use_window(self) -> Page:
        """Open a window without cookies."""
        context = self.browser.new_context()
        context.set_default_timeout(TIMEOUT_MS)
        self._page = context.new_page()
        return self._page

    def open(self, address: str) -> None:
        self._reload()
        answer = self.page.goto(address)
        assert answer is not None
        assert answer.status == 200, address

    def _reload(self) -> None:
        """Restart the development server after a change, as it does itself."""
        if self._is_stale and "runserver" in self._servers:
            self.start("runserver", self._servers["runserver"][0])

    def fill(self, name: str, value: str) -> None:
        field = self.page.get_by_label(re.compile(f"^{re.escape(name)}:?$")).first
        if field.evaluate("field => field.localName") == "select":
            field.select_option(label=value)
        else:
            field.fill(value)

    def click(self, label: str) -> None:
        """Click the first button or link with this name, or else the first that begins so."""
        exact = [self.page.get_by_role(role, name=label, exact=True) for role in ("button", "link")]
        start = re.compile(f"^\\s*{re.escape(label)}")
        other = self.page.locator("a, summary, button, label").filter(has_text=start)
        expect(exact[0].or_(exact[1]).or_(other).first).to_be_visible()
        next((found for found in exact if found.count()), other).first.click()

    def talk(self, block: str) -> None:
        """Write to the bot, and read the end of each answer."""
        chat = Chat(self.page)
        replies = self.page.locator(f"{REPLY}.cm-complete")
        *lines, last = block.splitlines()
        for line in [*lines, last]:
            start, text = line.split(": ", 1)
            if start == "You":
                count = replies.count()
                chat.send(text)
                if line != last:
                    expect(replies).to_have_count(count + 1)
            else:
                assert start == "Bot", line
                expect(replies.last.locator(".cm-text")).to_contain_text(text)


def variables_of_postgresql(url: str) -> dict[str, str]:
    """Return the variables with which PostgreSQL's programs reach the server of a URL."""
    parts = urlsplit(url)
    given = {
        "PGHOST": parts.hostname,
        "PGPORT": parts.port,
        "PGUSER": parts.username,
        "PGPASSWORD": parts.password,
    }
    return {name: str(value) for name, value in given.items() if value}
