"""The demo project under the theme that the environment variable THEME names."""

from __future__ import annotations

import os

from project.settings import *  # noqa: F403  # the same project, with the changes below
from project.settings import INSTALLED_APPS as APPS

THEME = os.environ.get("THEME", "django")
INSTALLED_APPS = APPS if THEME == "django" else [THEME, *APPS]
if THEME == "grappelli":
    ROOT_URLCONF = "tests.themes.grappelli_urls"
