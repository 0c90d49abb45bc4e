"""The parts that can only be imported after Django is set up."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django_ai_assistant.helpers.assistants import AIAssistant
from django_ai_assistant.helpers.django_messages import save_django_messages
from django_ai_assistant.helpers.use_cases import create_message, delete_message, delete_thread
from django_ai_assistant.models import Thread

from chatmemory.testing.stores import Model
from tests.programs.peers.fake_llm import FakeChatModel

MODELS: dict[str, Model] = {}
"""The model of each turn, by the user's text."""


class FakeAssistant(AIAssistant):
    id = "fake"
    name = "Fake"
    instructions = ""
    model = "fake"

    def get_llm(self) -> FakeChatModel:
        # The first message has the empty instructions, which the contract does not know.
        return FakeChatModel(lambda given: MODELS[given[-1]](given[1:]))


def thread_of(user: str, session: str) -> Thread:
    """Return the thread of this name; create it if it does not exist."""
    owner, _ = User.objects.get_or_create(username=user)
    found = Thread.objects.filter(name=session, created_by=owner)
    if not found:
        with transaction.atomic():  # it holds the write lock, so only one thread is created
            return found.all().first() or Thread.objects.create(name=session, created_by=owner)
    return found[0]


def run(thread: Thread, text: str, model: Model) -> Any:
    """Create a message in the thread, which runs the assistant."""
    MODELS[text] = model
    return create_message("fake", thread, thread.created_by, text)["output"]


__all__ = ["delete_message", "delete_thread", "run", "save_django_messages", "thread_of"]
