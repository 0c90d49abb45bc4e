"""Settings of the benchmark's servers; the benchmark sets their environment."""

from __future__ import annotations

import os
from typing import Any

from project.settings import *  # noqa: F403  # with the changes below
from project.settings import CACHES, CHANNEL_LAYERS

ALLOWED_HOSTS = ["127.0.0.1"]
_own: dict[str, Any] = {
    "RESPONDER": f"tests.programs.recall.responders.{os.environ['RECALL_MEMORY']}",
    "LEASE": 2,
    "SENDS_PER_MINUTE": None,
}
CHATMEMORY = _own
if os.environ.get("REDIS_URL"):  # other programs may use this Redis
    CHANNEL_LAYERS["default"]["CONFIG"]["prefix"] = os.environ["RECALL_NAME"]
    CACHES["default"]["KEY_PREFIX"] = os.environ["RECALL_NAME"]
