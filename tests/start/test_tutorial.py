"""The tutorial works: each command, file, click and message of its pages, in a new environment."""

from __future__ import annotations

import os
import re
import subprocess
import uuid
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from tests.browsers import ALLOW_QUERIES
from tests.servers import free_port
from tests.start.following import Reader, variables_of_postgresql
from tests.test_wheel import built, wheel  # noqa: F401  # fixtures

pytestmark = [pytest.mark.long, pytest.mark.browser]

START = Path(__file__).resolve().parents[2] / "docs" / "start"
FOREIGN = ("DATABASE_URL", "DJANGO_SETTINGS_MODULE", "PYTHONPATH", "REDIS_URL", ALLOW_QUERIES)
PROXY = {"Host": "shop.example", "X-Forwarded-Proto": "https", "Referer": "https://shop.example/"}


@pytest.fixture
def names():
    """What differs from the pages: no other test has these ports and this database."""
    return SimpleNamespace(
        port=free_port(), model=free_port(), database=f"tea_{uuid.uuid4().hex[:12]}"
    )


@pytest.fixture
def environment():
    """A reader's environment, without network but loopback for pip."""
    given = {name: value for name, value in os.environ.items() if name not in FOREIGN}
    database = variables_of_postgresql(os.environ.get("DATABASE_URL", ""))
    return {**given, **database, "PIP_NO_INDEX": "1"}


@pytest.fixture
def reader(names, environment, tmp_path, wheel, launch, chromium):  # noqa: F811  # the fixture
    folder, backups = tmp_path / "shop", tmp_path / "backup"
    replaced = {
        "django-chatmemory[": f"{wheel}[",
        "127.0.0.1:8000": f"127.0.0.1:{names.port}",
        "127.0.0.1:8001": f"127.0.0.1:{names.model}",
        '"127.0.0.1", 8001': f'"127.0.0.1", {names.model}',
        "manage.py runserver": f"manage.py runserver --noreload {names.port}",
        "--workers 2 --port 8000": f"--workers 2 --port {names.port}",
        "tea_shop": names.database,
        "redis://127.0.0.1:6379/0": os.environ.get("REDIS_URL", ""),
        "/srv/shop": str(folder),
        "/mnt/backup": str(backups),
    }
    folder.mkdir()
    backups.mkdir()
    reader = Reader(folder, launch(chromium), replaced, environment)
    yield reader
    reader.close()
    subprocess.run(["dropdb", "--if-exists", names.database], env=environment, check=False)  # noqa: S603, S607


def test_a_reader_builds_tests_and_deploys_the_shop(reader, names, request):
    reader.follow(START / "tutorial-1-bot.md")
    reader.run("python -c 'import chatmemory; print(chatmemory.__file__)'")
    reader.check_printed(str(reader.folder))
    reader.follow(START / "tutorial-2-shop.md")
    reader.follow(START / "tutorial-3-production.md", heading="Tests")
    if not os.environ.get("DATABASE_URL", "").startswith("postgres"):
        pytest.skip("the deployment needs PostgreSQL")
    request.getfixturevalue("redis_url")
    reader.stop("runserver")
    reader.follow(START / "tutorial-3-production.md", heading="Deployment")
    assert answer_of_the_shop(names.port) == "I looked it up. You have no order 1."


def answer_of_the_shop(port):
    """Sign in as a browser behind the proxy does, and ask for an order over REST."""
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=PROXY) as client:
        form = client.get("/accounts/login/")
        [token] = re.findall(r'name="csrfmiddlewaretoken" value="(\w+)"', form.text)
        cookie = "; ".join(f"{name}={value}" for name, value in form.cookies.items())
        given = {"username": "olga", "password": "white-tea-4711", "csrfmiddlewaretoken": token}
        answer = client.post("/accounts/login/", data=given, headers={"Cookie": cookie})
        assert answer.status_code == 302, answer.text
        cookies = dict(answer.cookies)
        signed_in = {
            "Cookie": "; ".join(f"{name}={value}" for name, value in cookies.items()),
            "X-CSRFToken": cookies["csrftoken"],
        }
        chat = client.post("/chat/api/sessions/", json={}, headers=signed_in).json()
        address = f"/chat/api/sessions/{chat['key']}/messages/"
        sent = {"client_id": "1", "text": "Where is order 1?", "wait": 20}
        answer = client.post(address, json=sent, headers=signed_in, timeout=30)
        assert answer.status_code == 201, answer.text
        return answer.json()["messages"][-1]["text"]
