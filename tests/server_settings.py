"""The demo's settings, for servers that tests start."""

from __future__ import annotations

from project.settings import *  # noqa: F403

DEBUG = True  # which serves the static files

CHATMEMORY = {
    "RESPONDER": "tests.speaker.answer",
    "LEASE": 3,  # type: ignore[dict-item]  # the demo sets nothing but texts
    "SENDS_PER_MINUTE": None,  # type: ignore[dict-item]
}
