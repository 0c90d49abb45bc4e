"""The HTML of stored messages, for the pages, REST and the admin alike."""

from __future__ import annotations

from typing import Protocol

from django.utils.safestring import SafeString, mark_safe

from chatmemory.rendering.markdown import markdown
from chatmemory.rendering.text import escaped, has_markup

RENDERED_CHARS = 100_000
"""Maximum characters of Markdown that one response renders."""


class Head(Protocol):
    """The part of `chatmemory.models.Head` that identifies a session."""

    @property
    def pk(self) -> int: ...
    @property
    def scope(self) -> str: ...


class Row(Protocol):
    """The part of `chatmemory.models.StoredMessage` that is rendered."""

    @property
    def seq(self) -> int: ...
    @property
    def role(self) -> str: ...
    @property
    def text(self) -> str: ...


def person_of(scope: str, session_pk: int) -> str:
    """Return whose CPU time the texts of a session take; each session of the server has its own."""
    return scope if ":" in scope else f"{scope} {session_pk}"


def is_markdown(row: Row) -> bool:
    """Whether the text of a row is rendered as Markdown. All other texts are plain."""
    return row.role == "assistant" and has_markup(row.text)


def html_of(head: Head, row: Row) -> SafeString:
    """Return the text of a row as HTML: rendered Markdown, or the escaped plain text."""
    if not is_markdown(row):
        html = escaped(row.text) if row.text else ""
        return mark_safe(html)  # noqa: S308  # escaped
    return markdown(row.text, prefix=f"m{row.seq}-", person=person_of(head.scope, head.pk))


class RowRenderer:
    """Renders rows of a session for one response, up to RENDERED_CHARS."""

    def __init__(self, head: Head) -> None:
        self.person = person_of(head.scope, head.pk)
        self._head = head
        self._chars = 0

    def html_of(self, row: Row) -> SafeString | None:
        """Return the HTML of a row; None above RENDERED_CHARS."""
        if is_markdown(row):
            chars = self._chars + len(row.text)
            if chars > RENDERED_CHARS:
                return None
            self._chars = chars
        return html_of(self._head, row)
