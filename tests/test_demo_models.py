"""What the demo prints if a provider's key is in the environment."""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import call_command

from chatmemory.checks.responders import provider_packages
from project.demo_models import MODELS, model_hint
from project.management.commands import demo

KEY = "sk-secret"


@pytest.mark.parametrize("variable", MODELS)
def test_each_model_and_its_package_are_known_to_langchain(variable):
    model, package = MODELS[variable]
    packages = provider_packages()
    assert packages
    assert packages[model.partition(":")[0]] == package.replace("-", "_")


def test_the_hint_is_one_line_without_the_key():
    hint = model_hint({"ANTHROPIC_API_KEY": KEY})
    assert hint is not None
    assert "RESPONDER=anthropic:claude-sonnet-4-5 make demo" in hint
    assert "langchain-anthropic" in hint
    assert "\n" not in hint
    assert KEY not in hint
    assert model_hint({}) is model_hint({"OPENAI_API_KEY": ""}) is None


@pytest.fixture
def printed(monkeypatch, settings, transactional_db):
    """Return a function that starts the demo without a server, and returns what it prints."""
    settings.DEBUG = True
    for name in ("make_example_data", "seed"):
        monkeypatch.setattr(demo, name, lambda user: None)
    monkeypatch.setattr(demo.Server, "run", lambda server: None)
    for variable in MODELS:
        monkeypatch.delenv(variable, raising=False)

    def run() -> str:
        stdout = StringIO()
        call_command("demo", port=9700, stdout=stdout)
        return stdout.getvalue()

    return run


@pytest.mark.slow
def test_the_demo_prints_the_hint_unless_another_responder_is_set(printed, monkeypatch, settings):
    assert "To chat with its model" not in printed()
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    found = printed()
    assert "OPENAI_API_KEY is set" in found
    assert KEY not in found
    settings.RESPONDER = "openai:gpt-5"
    assert "To chat with its model" not in printed()
