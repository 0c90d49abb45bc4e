"""Run a project's tests with all database work in one thread; end our threads after each test."""

from __future__ import annotations

import unittest
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from django.conf import settings as django_settings
from django.test import override_settings

from chatmemory.conf import Settings
from chatmemory.live.hub import hub
from chatmemory.live.runner import runner

TEST_SETTINGS = {
    "DB_THREADS": 0,
    "READS_PER_MINUTE": None,
    "WRITES_PER_MINUTE": None,
    "SENDS_PER_MINUTE": None,
    "TOKENS_PER_DAY": None,
}
"""Only Django's own thread sees a test's transaction. The other settings would use counts in the
cache, which Django does not empty between tests."""


class ChatMemoryTestMixin(unittest.TestCase):
    """Let chatmemory see a test's data. Put it before Django's TestCase or TransactionTestCase.

    It applies `TEST_SETTINGS`, unless a test sets them, and ends chatmemory's threads after each
    test.
    """

    @classmethod
    def setUpClass(cls) -> None:
        cls.enterClassContext(settings_for_tests())
        super().setUpClass()

    def run(self, result: unittest.TestResult | None = None) -> unittest.TestResult | None:
        try:
            return super().run(result)
        finally:
            end_threads()


@contextmanager
def settings_for_tests() -> Iterator[None]:
    """Apply `TEST_SETTINGS`, as defaults too: a test that overrides CHATMEMORY keeps them."""
    given = getattr(django_settings, "CHATMEMORY", {})
    with ExitStack() as stack:
        for name, value in TEST_SETTINGS.items():
            stack.enter_context(patch.object(vars(Settings)[name], "default", value))
        stack.enter_context(override_settings(CHATMEMORY={**given, **TEST_SETTINGS}))
        yield


def end_threads() -> None:
    """End the threads that serve sockets and run turns; the next use starts new ones."""
    runner.shut_down()
    hub.shut_down()
