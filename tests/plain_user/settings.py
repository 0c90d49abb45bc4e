"""The settings of the project, with another user model."""

from __future__ import annotations

from project.settings import *  # noqa: F403  # the same project, but for what follows
from project.settings import INSTALLED_APPS

ALLOWED_HOSTS = ["testserver"]
# Not the project itself: its admin is that of Django's own user model.
INSTALLED_APPS = [*(app for app in INSTALLED_APPS if app != "project"), "tests.plain_user"]
AUTH_USER_MODEL = "plain_user.Member"
