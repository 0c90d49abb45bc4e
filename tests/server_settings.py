"""The settings of the servers that tests start; CHATMEMORY comes from the environment."""

from __future__ import annotations

import json
import os

from project.settings import *  # noqa: F403  # the same project, with the changes below
from project.settings import CACHES, CHANNEL_LAYERS, INSTALLED_APPS

CHATMEMORY = json.loads(os.environ["CHATMEMORY"])
if os.environ.get("REDIS_URL"):  # other tests may use the same Redis
    CHANNEL_LAYERS["default"]["CONFIG"]["prefix"] = os.environ["TEST_NAME"]
    if os.environ.get("LAYER_HOSTS"):
        CHANNEL_LAYERS["default"]["CONFIG"]["hosts"] = json.loads(os.environ["LAYER_HOSTS"])
    if os.environ.get("LAYER") == "core":
        CHANNEL_LAYERS["default"]["BACKEND"] = "channels_redis.core.RedisChannelLayer"
    CACHES["default"]["KEY_PREFIX"] = os.environ["TEST_NAME"]
FORCE_SCRIPT_NAME = os.environ.get("FORCE_SCRIPT_NAME")
STATIC_URL = os.environ.get("STATIC_URL", "static/")
if os.environ.get("WITHOUT_DAPHNE"):  # runserver would then be Django's, a WSGI server
    INSTALLED_APPS.remove("daphne")
