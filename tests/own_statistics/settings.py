"""The settings of the project, with an app of its own that is labeled `statistics`."""

from __future__ import annotations

from project.settings import *  # noqa: F403  # with the changes below
from project.settings import INSTALLED_APPS

ALLOWED_HOSTS = ["testserver"]
INSTALLED_APPS = [*INSTALLED_APPS, "tests.own_statistics"]
