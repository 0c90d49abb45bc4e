"""Facts that optional apps add to the page Health."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from django.utils.translation import gettext as _

from chatmemory.logs import log_error

if TYPE_CHECKING:
    from django.utils.functional import _StrPromise

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class FactValue:
    """A value of the present state; a bad one is marked, with what to do."""

    value: object
    is_bad: bool = False
    advice: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredFact:
    """A line of the page Health, which an optional app reads."""

    label: str | _StrPromise
    read: Callable[[], FactValue]

    def value(self) -> FactValue:
        """Return the value, or that it cannot be read: the page also shows what else is wrong."""
        try:
            return self.read()
        except Exception as error:  # the code of another app can raise any
            log_error(logger, "a fact of Health cannot be read", error=error)
            return FactValue(value=_("cannot be read"), is_bad=True)


_facts: dict[str, RegisteredFact] = {}


def register_fact(code: str, *, label: str | _StrPromise, read: Callable[[], FactValue]) -> None:
    """Add a line to the page Health, from `ready()`; a repeated call changes nothing.

    `read` is called for each view of the page. Raises ValueError if another fact has this code.
    """
    known = _facts.setdefault(code, RegisteredFact(label=label, read=read))
    if known.read is not read:
        raise ValueError(f"Another fact has the code {code!r}.")


def registered_facts() -> list[RegisteredFact]:
    """Return the facts that optional apps have registered."""
    return list(_facts.values())
