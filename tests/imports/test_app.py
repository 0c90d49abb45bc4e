"""The app without its extra."""

from __future__ import annotations

import sys

import pytest
from django.apps import apps
from django.core.exceptions import ImproperlyConfigured


@pytest.mark.parametrize(
    ("missing", "error"),
    [("ijson", ImproperlyConfigured), ("chatmemory.imports.archives", ModuleNotFoundError)],
)
def test_only_a_missing_ijson_names_the_extra(monkeypatch, missing, error):
    for name in ("files", "reading"):
        monkeypatch.delitem(sys.modules, f"chatmemory.imports.{name}", raising=False)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(error) as raised:
        apps.get_app_config("chatmemory_imports").ready()
    assert ('pip install "django-chatmemory[imports]"' in str(raised.value)) == (missing == "ijson")
