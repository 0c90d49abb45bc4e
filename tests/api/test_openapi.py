"""The REST API in OpenAPI: complete, valid, optional, and good enough to generate a client."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import jsonschema
import pytest
from django.core.management import call_command
from django.test import Client
from drf_spectacular.generators import SchemaGenerator

from chatmemory.api.operations import OPERATIONS
from chatmemory.api.urls import resources
from chatmemory.search.requests import OPERATIONS as OF_SEARCH
from chatmemory.search.urls import resources as search_resources
from tests.servers import DEADLINE, person_with_talk, start_servers

ann = person_with_talk
serve = start_servers

VERSION_3_0 = {"OAS_VERSION": "3.0.3"}
CSRF_TOKEN = "a" * 32


def document():
    return SchemaGenerator().get_schema(request=None, public=True)


@pytest.fixture(scope="module")
def schema():
    """The document under the usual settings."""
    return document()


def operations(schema):
    return {
        (path, method): operation
        for path, methods in schema["paths"].items()
        for method, operation in methods.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{}, pytest.param({"custom_settings": f"{__name__}.VERSION_3_0"}, marks=pytest.mark.long)],
)
def test_the_schema_is_valid_and_causes_no_warning(settings, options, tmp_path):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "ALLOW_ANONYMOUS": not options}
    file = tmp_path / "schema.json"
    given = {"validate": True, "fail_on_warn": True, "format": "openapi-json", **options}
    call_command("spectacular", file=str(file), **given)
    expected = VERSION_3_0["OAS_VERSION"] if options else "3.1.1"
    assert json.loads(file.read_text())["openapi"] == expected


def test_each_operation_of_each_url_is_described(schema):
    views = [pattern.callback.cls for pattern in (*resources, *search_resources)]
    served = {
        (view.__name__, method.upper())
        for view in views
        for method in view.http_method_names
        if method != "head" and hasattr(view, method)
    }
    described = {**OPERATIONS, **OF_SEARCH}
    assert described.keys() == served
    assert len(operations(schema)) == len(described)


def test_no_name_is_used_twice():
    names = [operation.name for operation in (*OPERATIONS.values(), *OF_SEARCH.values())]
    assert len(names) == len(set(names))


@pytest.mark.slow
def test_each_example_matches_its_schema(schema):
    media = [
        each
        for operation in operations(schema).values()
        for answer in [operation.get("requestBody", {}), *operation["responses"].values()]
        for each in answer.get("content", {}).values()
    ]
    examples = [(each, example["value"]) for each in media for example in each["examples"].values()]
    assert len(examples) > 100
    for each, example in examples:
        whole = {**each["schema"], "components": schema["components"]}
        jsonschema.Draft202012Validator(whole).validate(example)


def test_each_error_is_a_problem(schema):
    for (path, _), operation in operations(schema).items():
        for status, answer in operation["responses"].items():
            if int(status) < 400 or (path, status) == ("/api/health/", "503"):
                continue
            [(kind, media)] = answer["content"].items()
            assert kind == "application/problem+json"
            assert media["schema"] == {"$ref": "#/components/schemas/ChatMemoryProblem"}


def test_what_writes_needs_the_csrf_token_beside_the_session(schema):
    cookie, csrf = "chatmemorySession", "chatmemoryCsrf"
    found = operations(schema)
    assert found["/api/sessions/", "get"]["security"] == [{cookie: []}]
    assert found["/api/sessions/", "post"]["security"] == [{cookie: [], csrf: []}]
    assert found["/api/health/", "get"]["security"] == [{}]


@pytest.mark.slow
def test_tokens_are_described_too(settings):
    classes = [
        "rest_framework.authentication.TokenAuthentication",
        "rest_framework_simplejwt.authentication.JWTAuthentication",
    ]
    settings.CHATMEMORY = {**settings.CHATMEMORY, "API_AUTHENTICATION": classes}
    changed = document()
    security = changed["paths"]["/api/sessions/"]["get"]["security"]
    assert security == [{"tokenAuth": []}, {"jwtAuth": []}, {"chatmemorySession": []}]
    assert {"tokenAuth", "jwtAuth"} < changed["components"]["securitySchemes"].keys()


WITHOUT = """
import sys

sys.modules["drf_spectacular"] = sys.modules["drf_spectacular_sidecar"] = None
import django

django.setup()
from django.core.management import call_command
from django.test import Client

call_command("check")
assert Client().get("/api/sessions/", headers={"host": "localhost"}).status_code == 401
assert Client().get("/api/docs/", headers={"host": "localhost"}).status_code == 404
"""


@pytest.mark.slow
def test_the_api_works_without_drf_spectacular():
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "project.settings", "DATABASE_URL": ""}
    command = [sys.executable, "-c", WITHOUT]
    done = subprocess.run(  # noqa: S603  # a fixed command
        command, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_page_loads_nothing_from_other_hosts():
    page = Client().get("/api/docs/").content.decode()
    script = Client().get("/api/docs/?script=").content.decode()
    assert "/static/drf_spectacular_sidecar/swagger-ui-dist/swagger-ui-bundle.js" in page
    assert "://" not in page + script


@pytest.mark.long
@pytest.mark.browser
@pytest.mark.slow
def test_the_page_lists_the_operations_and_sends_a_request(ann, serve, launch, chromium):
    [server] = serve()
    browser = launch(chromium)
    context = browser.new_context()
    foreign = []
    context.on("request", lambda request: foreign.append(request.url))
    page = context.new_page()
    page.goto(f"{server.address}/api/docs/")
    page.locator("#operations-chatmemory-chatmemory_get_health").click()
    page.get_by_role("button", name="Try it out").click()
    page.get_by_role("button", name="Execute").click()
    page.locator(".live-responses-table .response-col_status", has_text="200").wait_for()
    hosts = (server.address, "data:", "blob:")
    assert [url for url in foreign if not url.startswith(hosts)] == []


@pytest.mark.long
@pytest.mark.slow
def test_a_generated_client_uses_the_api(ann, serve, tmp_path, monkeypatch, settings):
    [server] = serve()
    address = f"{server.address}/api/schema/?format=json"
    with urlopen(address, timeout=DEADLINE) as answer:  # noqa: S310  # our own server
        (tmp_path / "schema.json").write_bytes(answer.read())
    client_package(tmp_path, monkeypatch)
    api = "generated.api.chatmemory.chatmemory_"
    models = importlib.import_module("generated.models")
    client = importlib.import_module("generated.client").Client(
        base_url=server.address,
        cookies={settings.SESSION_COOKIE_NAME: ann.cookie, "csrftoken": CSRF_TOKEN},
        headers={"X-CSRFToken": CSRF_TOKEN},
        raise_on_unexpected_status=True,
        timeout=DEADLINE,
    )

    def call(name, *path, **given):
        return importlib.import_module(api + name).sync(*path, client=client, **given)

    with client:
        session = call("open_session", body=models.ChatMemoryOpenSession(title="A kettle"))
        assert (session.title, session.messages) == ("A kettle", 0)
        message = models.ChatMemorySendMessageText(client_id="c1", text="hi", wait=DEADLINE)
        sent = call("send_message", session.key, body=message)
        assert (sent.status, sent.messages[0].role) == ("complete", "assistant")
        page = call("list_messages", session.key, limit=1)
        assert [row.text for row in page.messages] == [sent.messages[0].text]
        problem = call("get_turn", session.key, "c2")
        assert (problem.status, problem.code) == (404, "unknown_turn")
        purged = call("purge_session", session.key)
        restored = call("restore_session", purged.undo, body=models.ChatMemoryNothing())
    assert (restored.key, restored.last_seq) == (session.key, 2)


def client_package(folder, monkeypatch):
    """Generate the package `generated` from `schema.json`, and make it importable."""
    # Not with --url: the generator waits only 5 s for the schema, whose first answer is slow.
    command = [sys.executable, "-m", "openapi_python_client", "generate"]
    command += ["--path", str(folder / "schema.json")]
    options = ["--meta", "none", "--fail-on-warning", "--output-path", str(folder / "generated")]
    # It formats with the ruff in PATH, which is the environment's.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(  # noqa: S603  # our own schema
        [*command, *options],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    monkeypatch.syspath_prepend(str(folder))
