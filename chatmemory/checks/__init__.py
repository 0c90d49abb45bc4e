"""System checks, run by `manage.py check`. Importing this package registers them."""

from __future__ import annotations

from chatmemory.checks import character_sets, deployment, derived, project, values, visitors

__all__ = ["character_sets", "deployment", "derived", "project", "values", "visitors"]
