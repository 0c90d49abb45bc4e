"""The project's application as the servers of tests run it: they sweep more often.

`LIMITS` in the environment, as JSON, replaces time limits that no setting changes, by full name.
"""

from __future__ import annotations

import json
import os
from importlib import import_module

from project.asgi import application  # sets Django up

# isort: split

from chatmemory import hub

hub.SWEEP_SECONDS = 1.0
for path, seconds in json.loads(os.environ.get("LIMITS", "{}")).items():
    module_name, _, limit = path.rpartition(".")
    module = import_module(module_name)
    assert hasattr(module, limit), f"{module_name} has no {limit}"
    setattr(module, limit, seconds)

without_sockets = application.application_mapping["http"]

__all__ = ["application", "without_sockets"]
