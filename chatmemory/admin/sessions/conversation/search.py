"""Search within one session: a bounded number of messages for each request."""

from __future__ import annotations

from dataclasses import dataclass

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from chatmemory.admin.sessions.conversation.base import ConversationPage
from chatmemory.admin.sessions.conversation.history import History
from chatmemory.admin.sessions.conversation.positions import Span, number
from chatmemory.admin.text import visible
from chatmemory.models import Message, Session
from chatmemory.services.redaction.matching import Occurrence, occurrence_in_message

SCANNED_ROWS = 10_000
"""Messages that one request searches."""

MAX_HITS = 50
MAX_QUERY_CHARS = 1_000
CONTEXT_CHARS = 80
"""Characters that a result shows before and after the found text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snippet:
    """A found text between the words around it."""

    before: str
    found: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A message that contains the text."""

    message: Message
    snippet: Snippet

    @property
    def role_name(self) -> str:
        return str(dict(Message.Role.choices).get(self.message.role, self.message.role))


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The result for the messages from `low` to `high`, the newest first."""

    hits: list[Hit]
    low: int
    high: int
    is_complete: bool
    """Whether no older messages remain to be searched."""


def find_text(session: Session, text: str, span: Span) -> Found:
    """Search the newest messages of a span. At most MAX_HITS are found, in SCANNED_ROWS."""
    low = max(span.low, span.high - SCANNED_ROWS + 1)
    of_span = Message.stored.filter(session=session, seq__gte=low, seq__lte=span.high)
    found = list(of_span.containing(text).order_by("-seq")[:MAX_HITS])
    if len(found) == MAX_HITS:  # the rest of the span was not searched
        low = found[-1].seq
    snippets = ((message, snippet_of(message, text)) for message in found)
    # Without a match in the syntax of the stored JSON, such as the name of a field.
    hits = [Hit(message=message, snippet=snippet) for message, snippet in snippets if snippet]
    return Found(hits=hits, low=low, high=span.high, is_complete=low <= span.low)


def snippet_of(message: Message, text: str) -> Snippet | None:
    """Return where a message contains a text: in its words, tool calls or other data."""
    found = occurrence_in_message(message, text)
    return None if found is None else cut_out(found)


def cut_out(found: Occurrence) -> Snippet:
    """Return a found text with the words around it."""
    return Snippet(
        before=visible(found.whole[max(0, found.start - CONTEXT_CHARS) : found.start]),
        found=visible(found.whole[found.start : found.end]),
        after=visible(found.whole[found.end : found.end + CONTEXT_CHARS]),
    )


class SearchView(ConversationPage):
    """Lists the messages of a session that contain a text."""

    permission = "view_transcript"

    def get(self, request: HttpRequest, pk: int) -> HttpResponse:
        session = self.session
        text = request.GET.get("q", "").strip()[:MAX_QUERY_CHARS].replace("\0", "")
        is_removed_searched = "removed" in request.GET
        low = session.first_seq
        if is_removed_searched and not History(self.model_admin, request, session).is_erased:
            low = session.stored_from
        before = number(request, "before")
        high = session.last_seq if before is None else min(session.last_seq, before - 1)
        found = find_text(session, text, Span(low=low, high=high)) if text else None
        if found is not None:
            self.record_reading(session, [hit.message.seq for hit in found.hits])
        return self.render(
            "search.html",
            session,
            title=_("Search"),
            text=text,
            found=found,
            results=[] if found is None else self._hits_with_urls(session, found),
            removed=is_removed_searched,
            more_url=found and self.url("session_search", session.pk, q=text, before=found.low),
        )

    def _hits_with_urls(self, session: Session, found: Found) -> list[tuple[Hit, str]]:
        """Return the hits with the URLs of their places in the transcript."""
        return [
            (hit, self.page_url(session.pk, fragment=f"m{hit.message.seq}", seq=hit.message.seq))
            for hit in found.hits
        ]
