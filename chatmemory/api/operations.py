"""What each operation of the API accepts and answers, for its description in OpenAPI."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from chatmemory.api import answers, requests
from chatmemory.api.errors import HTTP_ONLY, STATUSES, entry_for
from chatmemory.errors import (
    Archived,
    BadInput,
    Busy,
    ChatMemoryError,
    Conflict,
    Forbidden,
    Held,
    HistoryCleared,
    MemoryUnavailable,
    NotFound,
    QueueFull,
    RateLimited,
    Refused,
    RoleForbidden,
    Unauthenticated,
    UnknownTurn,
)
from chatmemory.protocol.shapes import Shape

Errors = tuple[type[ChatMemoryError] | str, ...]
"""Error classes; a code means `BadInput`, or an error of HTTP itself."""

ALWAYS: Errors = ("not_acceptable", ChatMemoryError)
OF_PERSONS: Errors = (Unauthenticated, Forbidden, Refused, RateLimited, MemoryUnavailable)
OF_QUERIES: Errors = ("bad_field", "unknown_field")
OF_BODIES: Errors = (
    "bad_json",
    "bad_shape",
    "too_deep",
    "bad_number",
    "bad_field",
    "unknown_field",
    "bad_text",
    "too_large",
    "length_required",
    "precondition_failed",
    "unsupported_media_type",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of one URL."""

    name: str
    """Unique in the API."""
    summary: str
    answers: Mapping[int, tuple[type, Any]] = field(default_factory=dict)
    """The type of the answer and an example, by status."""
    query: Shape[Any] | None = None
    body: Shape[Any] | None = None
    example: Mapping[str, object] = field(default_factory=dict)
    """A body."""
    errors: Errors = ()
    """Errors besides those that follow from the other fields."""
    is_conditional: bool = False
    """Whether a client that has the current state gets 304."""
    files: Mapping[str, Any] = field(default_factory=dict)
    """The file of the answer 200, by content type, with an example."""
    is_public: bool = False
    """Whether it needs no login."""

    def codes(self) -> dict[int, list[str]]:
        """Return the error codes by status."""
        errors = {
            *ALWAYS,
            *(() if self.is_public else OF_PERSONS),
            *(OF_QUERIES if self.query else ()),
            *(OF_BODIES if self.body else ()),
            *self.errors,
        }
        found: dict[int, list[str]] = {}
        for code, status in sorted(map(_code_and_status, errors)):
            found.setdefault(status, []).append(code)
        return dict(sorted(found.items()))


def _code_and_status(error: type[ChatMemoryError] | str) -> tuple[str, int]:
    if not isinstance(error, str):
        return error.code, entry_for(STATUSES, error) or 500
    of_http = {code: status for status, code, _ in HTTP_ONLY.values()}
    return error, 413 if error == "too_large" else of_http.get(error, STATUSES[BadInput])


KEY = "0b9f7c9e-8a64-4f0e-9d52-0d5c3c1f7a11"
TURN = "5d2c1c52"
MOMENT = "2026-05-04T09:30:00+00:00"

STATE: Mapping[str, object] = {
    "key": KEY,
    "title": "A kettle",
    "epoch": 4711,
    "first_seq": 1,
    "last_seq": 2,
    "revision": 3,
    "archived": False,
    "running": None,
    "waiting": 0,
}
SESSION: Mapping[str, object] = {
    **STATE,
    "pinned": False,
    "held": False,
    "expires_at": None,
    "messages": 2,
    "created_at": MOMENT,
    "last_message_at": MOMENT,
}
NEW_SESSION = {**SESSION, "last_seq": 0, "messages": 0, "last_message_at": None}
QUESTION: Mapping[str, object] = {
    "seq": 1,
    "revision": 0,
    "turn": TURN,
    "step": None,
    "client_id": TURN,
    "role": "user",
    "status": "complete",
    "text": "How long does a kettle take?",
    "content": None,
    "cut": False,
    "error": "",
    "asks": None,
    "usage": None,
    "model": "",
    "feedback": None,
    "redacted": False,
    "quarantined": False,
    "created_at": MOMENT,
}
REPLY = {
    **QUESTION,
    "seq": 2,
    "step": 0,
    "client_id": None,
    "role": "assistant",
    "text": "About four minutes.",
    "model": "gpt-5",
    "usage": {"input_tokens": 12, "output_tokens": 5, "total_tokens": 17},
}
WAITING: Mapping[str, object] = {
    "turn": TURN,
    "status": "waiting",
    "seq": None,
    "error": "",
    "duplicate": False,
    "messages": [],
}
ANSWERED = {**WAITING, "status": "complete", "seq": 1, "messages": [REPLY]}

VISITOR: Mapping[str, object] = {"visitor": "3fa4b2c1" * 8, "ends_at": MOMENT, "token": None}

NO_SESSION: Errors = (NotFound,)

OPERATIONS: Mapping[tuple[str, str], Operation] = {
    ("Health", "GET"): Operation(
        name="get_health",
        summary="Whether the app works, for monitors",
        answers={
            200: (answers.HealthState, {"status": "ok"}),
            503: (answers.HealthState, {"status": "unavailable"}),
        },
        errors=(Unauthenticated,),
        is_public=True,
    ),
    ("SessionList", "GET"): Operation(
        name="list_sessions",
        summary="List sessions, the last active first",
        query=requests.SESSION_QUERY,
        is_conditional=True,
        answers={200: (answers.SessionPage, {"sessions": [SESSION], "next": None})},
        errors=("bad_text",),
    ),
    ("SessionList", "POST"): Operation(
        name="open_session",
        summary="Open a session: 201 if it is new, 200 if the key exists",
        body=requests.OPEN_SESSION,
        example={"key": KEY, "title": "A kettle"},
        answers={200: (answers.Session, SESSION), 201: (answers.Session, NEW_SESSION)},
        errors=("too_many", Conflict, NotFound),
    ),
    ("SessionDetail", "GET"): Operation(
        name="get_session",
        summary="Return a session, without its messages",
        is_conditional=True,
        answers={200: (answers.Session, SESSION)},
        errors=NO_SESSION,
    ),
    ("SessionDetail", "PATCH"): Operation(
        name="update_session",
        summary="Rename or pin a session",
        body=requests.UPDATE_SESSION,
        example={"title": "A kettle", "expect_revision": 2},
        answers={200: (answers.Session, SESSION)},
        errors=(NotFound, Conflict, Held, "too_many"),
    ),
    ("SessionDetail", "DELETE"): Operation(
        name="purge_session",
        summary="Purge a session, which can be restored for a time",
        answers={200: (answers.Purged, {"undo": 7, "until": MOMENT})},
        errors=(NotFound, Held, "precondition_failed"),
    ),
    ("Archive", "POST"): Operation(
        name="archive_session",
        summary="Close a session for new messages; may be repeated",
        body=requests.NOTHING,
        answers={200: (answers.Session, {**SESSION, "archived": True})},
        errors=NO_SESSION,
    ),
    ("Unarchive", "POST"): Operation(
        name="unarchive_session",
        summary="Open an archived session for new messages; may be repeated",
        body=requests.NOTHING,
        answers={200: (answers.Session, SESSION)},
        errors=NO_SESSION,
    ),
    ("RemovedList", "GET"): Operation(
        name="list_removed",
        summary="List the purged sessions that can be restored, the last one first",
        query=requests.REMOVED_QUERY,
        answers={
            200: (
                answers.RemovedPage,
                {
                    "removed": [
                        {
                            "undo": 7,
                            "key": KEY,
                            "title": "A kettle",
                            "messages": 2,
                            "removed_at": MOMENT,
                            "until": MOMENT,
                        }
                    ],
                    "next": None,
                },
            )
        },
    ),
    ("Restore", "POST"): Operation(
        name="restore_session",
        summary="Restore a purged session",
        body=requests.NOTHING,
        answers={200: (answers.Session, SESSION)},
        errors=(NotFound, Conflict, Busy),
    ),
    ("MessageList", "GET"): Operation(
        name="list_messages",
        summary="Return messages in order of seq: a page, those missed, or the newest",
        query=requests.MESSAGE_QUERY,
        is_conditional=True,
        answers={
            200: (
                answers.MessagePage,
                {
                    "epoch": 4711,
                    "first_seq": 1,
                    "last_seq": 2,
                    "superseded": [],
                    "messages": [QUESTION, REPLY],
                    "cursor": "…",
                    "reset": None,
                    "more": False,
                    "session": STATE,
                },
            )
        },
        errors=NO_SESSION,
    ),
    ("MessageList", "POST"): Operation(
        name="send_message",
        summary="Send a message: 202 if it is stored, 201 if its turn has ended, 200 if repeated",
        body=requests.SEND_MESSAGE,
        example={"client_id": TURN, "text": "How long does a kettle take?", "wait": 30},
        answers={
            200: (answers.Sent, {**ANSWERED, "duplicate": True}),
            201: (answers.Sent, ANSWERED),
            202: (answers.Sent, WAITING),
        },
        errors=(
            "empty",
            "too_many",
            RoleForbidden,
            NotFound,
            Conflict,
            HistoryCleared,
            Archived,
            Held,
            Busy,
            QueueFull,
        ),
    ),
    ("MessageDetail", "GET"): Operation(
        name="get_message",
        summary="Return a message without truncation",
        query=requests.MESSAGE_FORM,
        answers={200: (answers.Message, {**REPLY, "html": "<p>About four minutes.</p>\n"})},
        errors=NO_SESSION,
    ),
    ("VersionList", "GET"): Operation(
        name="list_versions",
        summary="List the versions of a user's message, the oldest first",
        answers={
            200: (
                answers.VersionPage,
                {"versions": [{"turn": TURN, "seq": 1, "to_seq": 2, "current": True}]},
            )
        },
        errors=NO_SESSION,
    ),
    ("TurnList", "GET"): Operation(
        name="list_turns",
        summary="Return the running turn, then the waiting ones in the order in which they start",
        answers={
            200: (
                answers.TurnPage,
                {
                    "turns": [
                        {"turn": TURN, "status": "running", "text": "How long?", "since": MOMENT}
                    ]
                },
            )
        },
        errors=NO_SESSION,
    ),
    ("TurnDetail", "GET"): Operation(
        name="get_turn",
        summary="Return a turn, whether it has ended or not",
        answers={
            200: (
                answers.Turn,
                {
                    "turn": TURN,
                    "status": "complete",
                    "seqs": [1, 2],
                    "error": "",
                    "model": "gpt-5",
                    "usage": REPLY["usage"],
                },
            )
        },
        errors=(NotFound, UnknownTurn),
    ),
    ("TurnFeedback", "PUT"): Operation(
        name="set_feedback",
        summary="Rate the reply of a turn; null withdraws the feedback",
        body=requests.SET_FEEDBACK,
        example={"value": 1, "reason": "short"},
        answers={200: (answers.Feedback, {"turn": TURN, "value": 1, "reason": "short"})},
        errors=(NotFound, UnknownTurn, Busy, Held),
    ),
    ("TurnFeedback", "DELETE"): Operation(
        name="withdraw_feedback",
        summary="Withdraw the feedback on the reply of a turn, if there is any",
        answers={200: (answers.Feedback, {"turn": TURN, "value": None, "reason": ""})},
        errors=(NotFound, UnknownTurn, Busy, Held, "precondition_failed"),
    ),
    ("Stop", "POST"): Operation(
        name="stop_turn",
        summary="Stop a turn, by default the running one; may be repeated",
        body=requests.STOP_TURN,
        example={"turn": TURN},
        answers={200: (answers.Stopped, {"turn": TURN, "status": "running"})},
        errors=(NotFound, UnknownTurn),
    ),
    ("ExportOwnData", "GET"): Operation(
        name="export_own_data",
        summary="Return a file with all stored sessions of the user",
        query=requests.EXPORT_QUERY,
        files={"application/json": [], "text/markdown": "# A kettle"},
    ),
    ("EraseOwnData", "POST"): Operation(
        name="erase_own_data",
        summary="Delete all sessions of the user permanently",
        body=requests.ERASE_OWN_DATA,
        example={"confirm": "ann"},
        answers={
            200: (answers.OwnErasure, {"sessions": 1, "messages": 2, "turns": 1, "held": []}),
        },
    ),
    ("VisitorList", "POST"): Operation(
        name="create_visitor",
        summary="Become a visitor, without an account: 201 if new, 200 if the cookie is valid",
        body=requests.NEW_VISITOR,
        example={"embed": ""},
        answers={200: (answers.Visitor, VISITOR), 201: (answers.Visitor, VISITOR)},
        errors=(*OF_PERSONS, Conflict),
        is_public=True,
    ),
    ("Adoption", "GET"): Operation(
        name="list_adoptable",
        summary="List the sessions of this browser's visitor, before the user takes them over",
        answers={
            200: (
                answers.Adoptable,
                {
                    "visitor": VISITOR["visitor"],
                    "sessions": [
                        {"key": KEY, "title": "", "text": "How long?", "last_message_at": MOMENT}
                    ],
                    "done": False,
                },
            )
        },
        errors=NO_SESSION,
    ),
    ("Adoption", "POST"): Operation(
        name="adopt_visitor",
        summary="Move the sessions of this browser's visitor to the user; may be repeated",
        body=requests.ADOPT,
        example={"visitor": VISITOR["visitor"]},
        answers={200: (answers.Adopted, {"keys": {KEY: KEY}})},
        errors=(NotFound, Conflict),
    ),
    ("OwnVisitor", "DELETE"): Operation(
        name="erase_visitor",
        summary="Delete all data of the visitor permanently, and end the visitor",
        answers={
            200: (answers.OwnErasure, {"sessions": 1, "messages": 2, "turns": 1, "held": []}),
        },
        errors=(NotFound,),
    ),
    ("TicketList", "POST"): Operation(
        name="issue_ticket",
        summary="Issue a ticket with which a client without cookies opens one websocket",
        body=requests.NOTHING,
        answers={
            201: (
                answers.Ticket,
                {"ticket": "kZ0…", "expires_in": 30, "protocols": ["chatmemory.v1", "ticket.kZ0…"]},
            )
        },
    ),
}
"""By the name of the view and the method."""
