"""The settings of the servers that `chatmemory_recall` starts; it fills their environment."""

from __future__ import annotations

import os
from typing import Any

from project.settings import *  # noqa: F403  # the same project, but for what follows
from project.settings import CACHES, CHANNEL_LAYERS

ALLOWED_HOSTS = ["127.0.0.1"]
_own: dict[str, Any] = {
    "RESPONDER": f"project.recall_responders.{os.environ['RECALL_MEMORY']}",
    "LEASE": 2,
    "SENDS_PER_MINUTE": None,
}
CHATMEMORY = _own
if os.environ.get("REDIS_URL"):  # which others may use
    CHANNEL_LAYERS["default"]["CONFIG"]["prefix"] = os.environ["RECALL_NAME"]
    CACHES["default"]["KEY_PREFIX"] = os.environ["RECALL_NAME"]
