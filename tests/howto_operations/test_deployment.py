"""The files of docs/howto/deployment.md, behind a real nginx, and compose.yaml."""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import signal
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener

import pytest
import websockets
import yaml
from asgiref.sync import sync_to_async as db
from django.conf import settings as django_settings
from django.contrib.auth.models import Group, User
from django.core.management import get_commands

from chatmemory import services
from chatmemory.models import Message
from tests import servers
from tests.blocks import MANAGE, ROOT, block_with
from tests.conftest import database_environment, missing
from tests.factories import BY, make_session
from tests.howto_operations.checking import check
from tests.management.commanding import run
from tests.proxies import CONFIG, FILES
from tests.servers import (
    DEADLINE,
    Connection,
    free_port,
    is_listening,
    person_with_talk,
    start_servers,
    wait_for,
)
from tests.systemd import analyze

HOST = "chat.example.com"
ann = person_with_talk
serve = start_servers


def unit():
    return block_with("docs/howto/deployment.md", "LimitNOFILE").text


def parsed(text):
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str
    parser.read_string(text.replace("\\\n", " "))
    return parser


def test_the_unit_is_valid_and_waits_for_the_drain(tmp_path):
    name = re.match(r"# /etc/systemd/system/(\S+)\n", unit())[1]
    uvicorn = tmp_path / ".venv/bin/uvicorn"
    uvicorn.parent.mkdir(parents=True)
    uvicorn.touch(0o700)
    (tmp_path / "env").touch()
    text = unit().replace("/srv/example", str(tmp_path)).replace("User=example\n", "")
    units = tmp_path / "units"
    units.mkdir()
    (units / name).write_text(text.replace("/etc/example/env", str(tmp_path / "env")))
    analyze("verify", "--man=no", "--generators=no", name.replace("@", "@8001"), path=units)
    service = parsed(unit())["Service"]
    drain = 8
    assert int(service["TimeoutStopSec"]) >= drain + 12
    assert "KillSignal" not in service  # SIGTERM
    assert int(re.search(r"graceful-shutdown (\d+)", service["ExecStart"])[1]) >= drain + 12
    enabled = block_with("docs/howto/deployment.md", "systemctl enable").text.split()[3:]
    assert {found.replace("8001", "").replace("8002", "") for found in enabled} == {"example@"}


def test_the_secrets_of_the_page_are_long_and_random():
    command = block_with("docs/howto/deployment.md", "token_hex").text
    printed = [subprocess.check_output(command, shell=True, text=True) for _ in range(2)]  # noqa: S602  # our own page
    assert [len(text.strip()) for text in printed] == [64, 64]
    assert printed[0] != printed[1]


@pytest.mark.slow
@pytest.mark.django_db
def test_the_commands_before_the_first_start_run(settings, tmp_path, monkeypatch):
    settings.STATIC_ROOT = tmp_path
    monkeypatch.setenv("DJANGO_SUPERUSER_PASSWORD", "white-tea-4711")
    answers = {"createsuperuser": ["--noinput", "--username=olga", "--email=olga@example.com"]}
    start = "/srv/example/manage "
    for line in block_with("docs/howto/deployment.md", "/srv/example/manage migrate").commands:
        name, *args = shlex.split(line.removeprefix(start))
        assert run(name, *args, *answers.get(name, []))[0] == 0, line
    assert (tmp_path / "chatmemory/admin/admin.css").exists()
    assert Group.objects.filter(name="Chat lead").exists()
    assert User.objects.get(username="olga").is_superuser


def test_the_runner_of_the_page_exists():
    text = (ROOT / "docs/howto/deployment.md").read_text()
    [line] = re.findall(r"ExecStart=/srv/example/.venv/bin/python manage.py (\w+)`", text)
    assert line in get_commands()


@pytest.mark.slow
def test_the_settings_pass_the_checks_of_a_deployment(tmp_path):
    (tmp_path / "mysite").mkdir()
    (tmp_path / "mysite/bot.py").write_text("async def answer(messages, session):\n    yield 'a'\n")
    text = block_with("docs/howto/deployment.md", "SECURE_PROXY_SSL_HEADER").text
    named = re.findall(r'os.environ\["(\w+)"\]', text)
    env = dict.fromkeys(named, "a-text-of-50-characters!" * 3)
    env["REDIS_URL"] = "redis://127.0.0.1:1/0"
    report = check(tmp_path, text, "--deploy", **env)
    found = set(re.findall(r"\((\w+\.[EWI]\d{3})\)", report))
    assert found == {"security.W005", "security.W021"}, report  # the page names them
    without = text.replace("SECURE_SSL_REDIRECT = True\n", "")
    assert "security.W008" in check(tmp_path, without, "--deploy", **env)
    assert block_with("docs/howto/deployment.md", "check --deploy").text.startswith(
        f"{MANAGE}check --deploy"
    )


@pytest.fixture
def certificate(tmp_path):
    """A key and a certificate of the host, signed by itself."""
    program = shutil.which("openssl") or missing("openssl is not installed")
    key, chain = tmp_path / "privkey.pem", tmp_path / "fullchain.pem"
    subprocess.run(  # noqa: S603  # a fixed command
        [
            *(program, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", f"/CN={HOST}", "-keyout", str(key), "-out", str(chain)),
        ],
        check=True,
        capture_output=True,
    )
    return key, chain


def page_of_nginx(ports, http, https, certificate):
    """Return the configuration of the page with the ports and files of the test."""
    text = block_with("docs/howto/deployment.md", "proxy_pass").text
    key, chain = certificate
    replaced = {
        "listen 80;": f"listen 127.0.0.1:{http};",
        "listen 443 ssl;": f"listen 127.0.0.1:{https} ssl;",
        "127.0.0.1:8001": f"127.0.0.1:{ports[0]}",
        "127.0.0.1:8002": f"127.0.0.1:{ports[1]}",
        "/etc/ssl/example/privkey.pem": str(key),
        "/etc/ssl/example/fullchain.pem": str(chain),
        "alias /srv/example/static/;": f"alias {FILES}/;",
    }
    for old, new in replaced.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


@pytest.fixture
def nginx(tmp_path):
    """A function that runs nginx with a configuration of the context `http`."""
    program = shutil.which("nginx", path="/usr/sbin:/usr/bin") or missing("nginx is not installed")
    started = []

    def run(text, port=None):
        start, _, end = CONFIG.partition("  server {{")
        config = tmp_path / "nginx.conf"
        config.write_text(start.format(folder=tmp_path) + text + "}\n")
        assert end
        command = [program, "-e", "stderr", "-p", str(tmp_path), "-c", str(config)]
        if port is None:
            done = subprocess.run([*command, "-t"], capture_output=True, text=True, check=False)  # noqa: S603  # our own page
            assert done.returncode == 0, done.stderr
            return
        log = tmp_path / "nginx.log"
        with log.open("ab") as file:
            started.append(subprocess.Popen(command, stdout=file, stderr=file))  # noqa: S603  # our own page
        wait_for(lambda: is_listening(port), "nginx does not start", log)

    yield run
    for process in started:
        process.terminate()
        process.wait()


class Proxied(Connection):
    """A socket of the site's page, through nginx with TLS."""

    def __init__(self, person, port, context):
        super().__init__(None, person)
        self.port, self.context = port, context

    async def __aenter__(self):
        self.socket = await websockets.connect(
            f"wss://{HOST}:{self.port}/ws/chat/{self.key}/",
            host="127.0.0.1",
            port=self.port,
            ssl=self.context,
            origin=websockets.Origin(f"https://{HOST}:{self.port}"),
            additional_headers={"Cookie": f"{django_settings.SESSION_COOKIE_NAME}={self.cookie}"},
            open_timeout=DEADLINE,
            proxy=None,
        )
        return self


class NoRedirect(HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        """Return nothing, so that the redirect is raised."""


def fetch(address, context, **headers):
    """Return the status and the headers of an answer, without following it."""
    opener = build_opener(NoRedirect, HTTPSHandler(context=context))
    try:
        answer: Any = opener.open(Request(address, headers={"Host": HOST, **headers}))  # noqa: S310  # http only
    except HTTPError as error:
        answer = error
    with answer:
        return answer.status, answer.headers


@pytest.mark.long
@pytest.mark.redis
@pytest.mark.django_db(transaction=True)
async def test_chats_go_through_nginx_and_survive_the_end_of_a_process(
    ann, serve, nginx, certificate, redis_url, tmp_path, monkeypatch
):
    """The command of the unit runs, behind the configuration of the page."""
    command = parsed(unit())["Service"]["ExecStart"]
    for old, new in {
        "/srv/example/.venv/bin/uvicorn": "uvicorn",
        "mysite.asgi:application": "{application}",
        "%i": "{port}",
    }.items():
        assert command.count(old) == 1, old
        command = command.replace(old, new)
    monkeypatch.setitem(servers.COMMANDS, "unit", command)
    env = {"ALLOWED_HOSTS": HOST}
    two = await db(serve)(2, program="unit", env=env, redis_url=redis_url, DRAIN=1)
    http, https = free_port(), free_port()
    text = page_of_nginx([server.port for server in two], http, https, certificate)
    await db(nginx)(text, https)
    context = ssl.create_default_context(cafile=certificate[1])
    context.check_hostname = False

    async with Proxied(ann, https, context) as one, Proxied(ann, https, context) as other:
        for tab in (one, other):
            await tab.hello()
        await one.send("first")
        await other.idle(2)
        assert await db(two[0].terminate)() == -signal.SIGTERM
        closed = []
        for tab in (one, other):
            try:
                tab.deadline = 2
                closed.append((await tab.closed())[1])
            except TimeoutError:
                pass
        assert closed == [4503]
        async with Proxied(ann, https, context) as again:
            await again.hello()
            assert again.texts() == ["first", "first"]
            await again.send("second", "c2")
            await again.idle(4)
    assert await db(Message.objects.count)() == 4

    status, headers = await db(fetch)(f"http://127.0.0.1:{http}/chat/?a=1", None)
    assert (status, headers["Location"]) == (301, f"https://{HOST}/chat/?a=1")
    base = f"https://127.0.0.1:{https}"
    status, headers = await db(fetch)(f"{base}/static/chatmemory/element/chat.js", context)
    assert (status, headers["Cache-Control"]) == (200, "no-cache")
    forged = {"X-Forwarded-For": "6.6.6.6"}
    assert (await db(fetch)(f"{base}/admin/login/", context, **forged))[0] == 200
    logs = "".join(server.log.read_text() for server in two)
    assert '"GET /admin/login/' in logs
    assert "6.6.6.6" not in logs


@pytest.mark.slow
def test_nginx_accepts_both_configurations(nginx, certificate):
    nginx(page_of_nginx((1, 2), 3, 4, certificate))
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text())
    text = compose["configs"]["nginx"]["content"].replace("$$", "$")
    assert text.count("http://web:8000") == 1
    nginx(text.replace("http://web:8000", "http://127.0.0.1:8000"))


def test_the_compose_file_waits_for_the_drain_and_ends_the_server_itself():
    """Of compose.yaml, as docs/howto/deployment.md states."""
    services_of = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    web = services_of["web"]
    assert int(web["stop_grace_period"].removesuffix("s")) >= 20
    shell, option, script = shlex.split(web["command"])
    assert (shell, option) == ("sh", "-c")
    assert "exec uvicorn project.asgi:application" in " ".join(script.split())
    dockerfile = web["build"]["dockerfile_inline"]
    copied = [
        word
        for line in re.findall(r"COPY (.+) \S+$", dockerfile, re.MULTILINE)
        for word in line.split()
    ]
    assert copied
    assert [name for name in copied if not (ROOT / name).exists()] == []
    assert {*services_of} == {"proxy", "web", "postgres", "redis"}


@pytest.mark.long
@pytest.mark.django_db(transaction=True)
def test_a_runner_answers_a_waiting_turn_and_drains():
    """Of docs/howto/running.md."""
    make_session()
    address = {"session_key": "talk", "scope": "server", "by": BY}
    services.admit_turn(**address, client_id="c1", content="Hi")
    line = block_with("docs/howto/running.md", "chatmemory_runner").text.partition("#")[0]
    process = subprocess.Popen(  # noqa: S603  # our own page
        [sys.executable, *line.split()[1:]],
        cwd=ROOT,
        env={**database_environment(), "REDIS_URL": "", "RESPONDER": "tests.speaker.answer"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(
            lambda: services.get_session(**address).last_seq == 2, "no reply", Path("/dev/null")
        )
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
