"""The settings of the project, with another user model."""

from __future__ import annotations

from project.settings import *  # noqa: F403  # with the changes below
from project.settings import INSTALLED_APPS

ALLOWED_HOSTS = ["testserver"]
# Without the app `project`, whose admin requires Django's own user model.
INSTALLED_APPS = [*(app for app in INSTALLED_APPS if app != "project"), "tests.plain_user"]
AUTH_USER_MODEL = "plain_user.Member"
