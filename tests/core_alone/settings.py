"""The settings of the project, without the optional apps."""

from __future__ import annotations

from project.settings import *  # noqa: F403  # with the changes below
from project.settings import INSTALLED_APPS

ALLOWED_HOSTS = ["testserver"]
INSTALLED_APPS = [app for app in INSTALLED_APPS if not app.startswith("chatmemory.")]
