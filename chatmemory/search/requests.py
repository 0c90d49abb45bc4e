"""The body and the answer of a search over REST, and their description."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, TypedDict, cast

from chatmemory.api.operations import KEY, MOMENT, Operation
from chatmemory.api.requests import KEY as SESSION_KEY
from chatmemory.errors import BadInput, NotFound
from chatmemory.protocol.server_frames import Seq, SessionKey, Time
from chatmemory.protocol.shapes import Rule, Shape, check_number, check_text, text_rule
from chatmemory.search.analysis import Mode
from chatmemory.search.reading import ROLES
from chatmemory.search.searching import MAX_HITS, MAX_QUERY_CHARS, MODES, ORDERS, Order


def _check_time(value: object, name: str) -> datetime:
    text = check_text(value, name)
    try:
        time = datetime.fromisoformat(text)
        if time.utcoffset() is not None:
            return time.astimezone(UTC)
    except (ValueError, OverflowError):  # the second: in UTC outside of the calendar
        pass
    raise BadInput(f"{name} must be a time as ISO 8601 writes it, with an offset.", field=name)


TIME = Rule(check=_check_time, schema={"type": "string", "format": "date-time"})
QUERY = text_rule(minLength=1, maxLength=MAX_QUERY_CHARS)
LIMIT = Rule(
    check=check_number, schema={"type": "integer", "minimum": 1, "maximum": MAX_HITS}
)  # `search_messages` checks the bounds
CURSOR = text_rule(pattern=r"^[0-9a-f]+\.[0-9a-f]+\.[0-9a-f]+$")
RANGE = Rule(schema={"type": "array", "minItems": 2, "maxItems": 2, "items": {"type": "integer"}})


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchBody:
    """Finds messages by their words. A filter that is absent selects all."""

    query: Annotated[str, QUERY]
    """the words; the first 32 are used"""
    session: Annotated[str | None, SESSION_KEY] = None
    """the key of the only session to search"""
    role: Annotated[str | None, text_rule(enum=[*map(str, ROLES)])] = None
    """the role of the messages"""
    before: Annotated[datetime | None, TIME] = None
    """only messages that were stored earlier; an ISO 8601 time with an offset"""
    after: Annotated[datetime | None, TIME] = None
    """only messages that were stored then or later; an ISO 8601 time with an offset"""
    order: Annotated[str, text_rule(enum=[*ORDERS])] = ORDERS[0]
    """by `rank`, the default, or the `newest` first, then only messages with every word"""
    mode: Annotated[str, text_rule(enum=[*MODES])] = MODES[0]
    """`words`, the default: any of them, also in other forms; `prefix`: also words that begin with
    the last one; `phrase`: all of them, next to each other in this order"""
    limit: Annotated[int, LIMIT] = 20
    """maximum number of hits, 1 to 50"""
    cursor: Annotated[str | None, CURSOR] = None
    """`cursor` of an earlier answer"""

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `search_messages`, which checks their meaning."""
        return {
            "query": self.query,
            "session_key": self.session,
            "role": self.role,
            "before": self.before,
            "after": self.after,
            "order": cast("Order", self.order),
            "mode": cast("Mode", self.mode),
            "limit": self.limit,
            "cursor": self.cursor,
        }


class FoundMessage(TypedDict):
    """A found message."""

    session: SessionKey
    """the key of its session"""
    title: str
    """the title of the session; without one, the first words of its first user message"""
    seq: Seq
    """its seq"""
    role: Annotated[str, Rule(schema={"type": "string", "enum": [*map(str, ROLES)]})]
    """its role"""
    at: Time
    """when it was stored"""
    snippet: str
    """plain text around the found words, up to 200 characters"""
    ranges: list[Annotated[list[int], RANGE]]
    """where the found words are in the snippet: starts and ends, in characters (code points)"""
    score: Annotated[float, Rule(schema={"type": "number", "minimum": 0})]
    """by which hits are ranked; 0 in the order `newest`"""


class FoundPage(TypedDict):
    """The hits of a search."""

    hits: list[FoundMessage]
    partial: bool
    """whether older messages have not been searched"""
    cursor: str | None
    """for the next request; null if there is nothing more"""


SEARCH_BODY = Shape(SearchBody)

OPERATIONS: Mapping[tuple[str, str], Operation] = {
    ("Search", "POST"): Operation(
        name="search_messages",
        summary="Find messages by their words",
        body=SEARCH_BODY,
        example={"query": "green kettle", "limit": 10},
        answers={
            200: (
                FoundPage,
                {
                    "hits": [
                        {
                            "session": KEY,
                            "title": "A kettle",
                            "seq": 1,
                            "role": "user",
                            "at": MOMENT,
                            "snippet": "How long does a kettle take?",
                            "ranges": [[16, 22]],
                            "score": 1.4,
                        }
                    ],
                    "partial": False,
                    "cursor": None,
                },
            )
        },
        errors=("empty", NotFound),
    ),
}
"""By the name of the view and the method."""
