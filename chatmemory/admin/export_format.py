"""The format that the form of an export proposes: the operator's last one."""

from __future__ import annotations

from collections.abc import Container

from django.http import HttpRequest

DEFAULT = "markdown"
"""The format for a person who reads the file."""
_KEY = "chatmemory_export_format"


def proposed_format(request: HttpRequest, formats: Container[str]) -> str:
    """Return the format of the last export since the login, if it is among these."""
    last: object = request.session.get(_KEY)
    return last if isinstance(last, str) and last in formats else DEFAULT


def remember_format(request: HttpRequest, name: str) -> None:
    request.session[_KEY] = name
