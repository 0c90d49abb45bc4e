"""The field that a page of one conversation focuses, so that the operator types without a click."""

from __future__ import annotations

from collections.abc import Collection

from django.forms import Form


def focus_first(form: Form, names: Collection[str], *, first: str = "") -> None:
    """Focus a field: the first with an error, else `first`, else the first without a value."""
    wrong = [name for name in names if name in form.errors]
    empty = [name for name in names if not form[name].value()]
    name = next(filter(None, [*wrong, first, *empty]), None)
    if name is not None:
        form.fields[name].widget.attrs["autofocus"] = True
