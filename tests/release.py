"""Install the built wheel in new environments, and chat there: `make release-check`.

One environment for each version of Django, with the smallest and with all extras. Each needs the
package index and its own Python, and takes about a minute.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

from tests import wheels

PYTHONS = {"5.2": "python3.11", "6.0": "python3.12", "6.1": "python3.13"}
"""A Python for each version of Django."""
LEFT_OUT = ("dev", "mariadb")
"""Extras that a host does not install, or that need a compiler and MariaDB's headers."""

TURN = """
import asyncio, json, uuid
from django.contrib.auth.models import User
from django.test import Client
from mysite.asgi import application

async def talk(cookie):
    to_app, from_app = asyncio.Queue(), asyncio.Queue()
    headers = [(b"cookie", b"sessionid=" + cookie.encode()), (b"host", b"127.0.0.1"),
               (b"origin", b"http://127.0.0.1")]
    scope = {"type": "websocket", "path": f"/ws/chat/{uuid.uuid4()}/", "query_string": b"",
             "scheme": "ws", "subprotocols": ["chatmemory.v1"], "headers": headers}
    app = asyncio.ensure_future(application(scope, to_app.get, from_app.put))
    await to_app.put({"type": "websocket.connect"})
    question = {"type": "send", "id": "s", "client_id": "c1", "text": "My order is 4711."}
    for frame in ({"type": "hello", "v": 1, "create": True}, question):
        await to_app.put({"type": "websocket.receive", "text": json.dumps(frame)})
    while True:
        event = await asyncio.wait_for(from_app.get(), 30)
        frame = json.loads(event.get("text") or "{}")
        if frame.get("type") == "message" and frame["role"] == "assistant":
            print("reply:", frame["status"], frame["text"])
            break
        assert event["type"] in ("websocket.accept", "websocket.send"), event
    await to_app.put({"type": "websocket.disconnect", "code": 1001})
    await app

client = Client()
client.force_login(User.objects.create_user("ann"))
asyncio.run(talk(client.cookies["sessionid"].value))
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--django", choices=PYTHONS, action="append", help="only this version")
    versions = parser.parse_args().django or list(PYTHONS)
    all_extras = tomllib.loads((wheels.ROOT / "pyproject.toml").read_text())["project"]
    names = ",".join(sorted({*all_extras["optional-dependencies"]} - {*LEFT_OUT}))
    failed = 0
    with tempfile.TemporaryDirectory() as place:
        sdist, wheel = wheels.build(Path(place))
        run(sys.executable, "-m", "twine", "check", "--strict", str(sdist), str(wheel))
        for version in versions:
            for extras in ("", f"[{names}]"):
                began = time.monotonic()
                try:
                    result = check(Path(place, "new"), f"{wheel}{extras}", version)
                except subprocess.CalledProcessError as error:
                    failed += 1
                    result = f"FAILED {error.cmd}: {error.stdout[-2000:]}"
                shutil.rmtree(Path(place, "new"), ignore_errors=True)
                seconds = time.monotonic() - began
                title = "all extras" if extras else "no extras"
                sys.stdout.write(f"Django {version}, {title}: {result} ({seconds:.0f} s)\n")
    return failed


def check(folder: Path, requirement: str, django: str) -> str:
    """Install the requirement, make a project with the lines of the README, and chat in it."""
    environment = folder / "environment"
    run(find(PYTHONS[django]), "-m", "venv", str(environment))
    python = str(environment / "bin/python")
    pip = [python, "-m", "pip", "--disable-pip-version-check", "-q", "install"]
    run(*pip, requirement, f"Django~={django}.0")
    run(python, "-m", "django", "startproject", "mysite", str(folder))
    for name in ("settings", "urls", "asgi"):
        file = folder / "mysite" / f"{name}.py"
        before = file.read_text() if name == "settings" else ""
        file.write_text(before + readme_block(f"# {name}.py", has_daphne="[" in requirement))
    manage = [python, str(folder / "manage.py")]
    found = run(*manage, "check", cwd=folder)
    run(*manage, "migrate", "-v0", cwd=folder)
    reply = run(*manage, "shell", "-v0", "-c", TURN, cwd=folder)
    if "reply: complete" not in reply:
        raise subprocess.CalledProcessError(1, "chat", output=reply)
    packages = len(run(python, "-m", "pip", "list", "--format=freeze").splitlines())
    installed = run(python, "-m", "django", "--version").strip()
    version = run(python, "-c", "import chatmemory; print(chatmemory.__version__)").strip()
    warned = " ".join(re.findall(r"\w+\.[CEW]\d+", found)) or "no warning"
    reply = reply.strip().splitlines()[-1]
    return f"{version} on {installed}, {packages} packages, check: {warned}, {reply}"


def readme_block(first_line: str, *, has_daphne: bool) -> str:
    text = (wheels.ROOT / "README.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    block = next(block for block in blocks if block.startswith(first_line + "\n"))
    return block if has_daphne else re.sub('(?m)^    "daphne",.*\n', "", block)


def find(name: str) -> str:
    """Return the command of a Python, also of one that pyenv installed."""
    here = f"python{sys.version_info.major}.{sys.version_info.minor}"
    if name == here:
        return sys.executable
    pyenv = sorted(Path.home().glob(f".pyenv/versions/{name.removeprefix('python')}.*/bin/{name}"))
    found = shutil.which(name)
    return str(pyenv[-1]) if pyenv else found or sys.exit(f"{name} is not installed.")


def run(*command: str, cwd: Path | None = None) -> str:
    environment = {
        k: v for k, v in os.environ.items() if k not in ("DJANGO_SETTINGS_MODULE", "PYTHONPATH")
    }
    done = subprocess.run(  # noqa: S603  # our own command line
        command,
        cwd=cwd or "/",
        env=environment,
        check=True,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
