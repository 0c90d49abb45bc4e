"""The HTML of stored messages, for the pages, REST and the admin alike."""

from __future__ import annotations

import time
from typing import Protocol

from django.utils.safestring import SafeString, mark_safe

from chatmemory.rendering.markdown import markdown
from chatmemory.rendering.text import escaped, has_markup

RENDERED_CHARS = 100_000
RENDERED_SECONDS = 2.0
"""Limits of the Markdown that one response renders, in characters and CPU time."""


class Head(Protocol):
    """The part of `chatmemory.models.Head` that identifies a session."""

    @property
    def pk(self) -> int: ...
    @property
    def epoch(self) -> int: ...


class Row(Protocol):
    """The part of `chatmemory.models.StoredMessage` that is rendered."""

    @property
    def seq(self) -> int: ...
    @property
    def revision(self) -> int: ...
    @property
    def role(self) -> str: ...
    @property
    def text(self) -> str: ...


def is_markdown(row: Row) -> bool:
    """Whether the text of a row is rendered as Markdown. All other texts are plain."""
    return row.role == "assistant" and has_markup(row.text)


def html_of(head: Head, row: Row) -> SafeString:
    """Return the text of a row as HTML: rendered Markdown, or the escaped plain text."""
    if not is_markdown(row):
        html = escaped(row.text) if row.text else ""
        return mark_safe(html)  # noqa: S308  # escaped
    # A redaction or repair raises the revision. The epoch, since a restored database may assign
    # the primary key to another session.
    key = (head.pk, head.epoch, row.seq, row.revision)
    return markdown(row.text, key=key, prefix=f"m{row.seq}-")


class RowRenderer:
    """Renders rows of a session for one response, up to its limits."""

    def __init__(self, head: Head) -> None:
        self._head = head
        self._chars = 0
        self._until = time.thread_time() + RENDERED_SECONDS

    def html_of(self, row: Row) -> SafeString | None:
        """Return the HTML of a row; None above the limits, but never for the first row."""
        if is_markdown(row):
            chars = self._chars + len(row.text)
            is_late = self._chars > 0 and time.thread_time() > self._until
            if is_late or chars > RENDERED_CHARS:
                return None
            self._chars = chars
        return html_of(self._head, row)
