"""django-ai-assistant: its threads and its assistant, with a fake model."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import django
import pytest
from django.conf import settings
from django.core.management import call_command
from django.db import connections

from chatmemory.testing.langchain import to_langchain, to_plain
from chatmemory.testing.stores import Address, Message, Model, Store
from tests.programs.peers.base import Peer


def set_up(path: str) -> None:
    """Set Django up with this database."""
    if settings.configured:
        return
    settings.configure(
        SECRET_KEY="test",
        INSTALLED_APPS=[
            "django.contrib.auth",
            "django.contrib.contenttypes",
            "django_ai_assistant",
        ],
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.sqlite3",
                "NAME": path,
                "OPTIONS": {
                    "transaction_mode": "IMMEDIATE",
                    "init_command": "PRAGMA journal_mode=WAL",
                    "timeout": 20,
                },
            }
        },
        USE_TZ=True,
    )
    django.setup()


class Assistant(Store):
    """Uses its API: a message is created in a thread, which runs the assistant."""

    stores_user_message_first = True

    def __init__(self, path: str) -> None:
        set_up(path)
        self.parts: Any = import_module("tests.programs.peers.django_ai_assistant_parts")
        with Path(f"{path}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # one process at a time
            call_command("migrate", verbosity=0)

    def thread(self, at: Address) -> Any:
        return self.parts.thread_of(at.user, at.session)

    def append(self, at: Address, messages: Sequence[Message]) -> None:
        made = [to_langchain(message) for message in messages]
        self.parts.save_django_messages(made, self.thread(at))

    def read(self, at: Address) -> list[Message]:
        found = self.thread(at).get_messages(include_extra_messages=True)
        return [to_plain(message) for message in found]

    def clear(self, at: Address) -> None:
        thread = self.thread(at)
        for message in thread.messages.all():
            self.parts.delete_message(message=message, user=thread.created_by)

    def purge(self, at: Address) -> None:
        thread = self.thread(at)
        self.parts.delete_thread(thread=thread, user=thread.created_by)

    def turn(self, at: Address, text: str, model: Model) -> str:
        return str(self.parts.run(self.thread(at), text, model))

    def raw(self, at: Address) -> Iterable[bytes]:
        for message in self.thread(at).messages.values_list("message", flat=True):
            yield json.dumps(message).encode()

    def damage(self, at: Address, index: int) -> None:
        message = self.thread(at).messages.order_by("created_at")[index]
        type(message).objects.filter(pk=message.pk).update(message={"type": "oops"})

    def release(self) -> None:
        connections.close_all()


class TestAssistant(Peer):
    column = "django-ai-assistant"
    make_store = "tests.programs.peers.django_ai_assistant:Assistant"

    @pytest.fixture
    def arguments(self, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
        return {"path": str(tmp_path_factory.getbasetemp() / "db.sqlite3")}
