"""The bodies of answers: declared here, or as the frames that are equal to them."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired, TypedDict, get_args

from chatmemory.api.errors import HTTP_ONLY
from chatmemory.protocol import server_frames
from chatmemory.protocol.server_frames import (
    ErrorCode,
    FeedbackValue,
    Range,
    ResetReason,
    Seq,
    SessionKey,
    SessionState,
    Time,
    Title,
    TurnName,
    TurnStatus,
)
from chatmemory.protocol.shapes import Rule, text_rule

SOCKET_CODES = {"bad_frame", "unknown_type", "not_ready", "unsupported_version"}
"""Error codes of websockets alone."""

CODES = sorted(
    {*get_args(ErrorCode)} - SOCKET_CODES | {code for _, code, _ in HTTP_ONLY.values()},
)

Count = Annotated[int, Rule(schema={"type": "integer", "minimum": 0})]
Usage = Annotated[
    dict[str, object] | None, Rule(schema={"type": "object", "additionalProperties": True})
]


class Problem(TypedDict):
    """An error, as RFC 9457 defines a problem. Programs decide by `code` and `retry`."""

    status: Annotated[int, Rule(schema={"type": "integer", "minimum": 400, "maximum": 599})]
    """the HTTP status"""
    title: str
    """the phrase of the HTTP status"""
    detail: Annotated[str, text_rule(minLength=1)]
    """the error text, for people"""
    code: Annotated[str, Rule(schema={"type": "string", "enum": CODES})]
    """the error code, for programs"""
    retry: bool
    """whether the unchanged request may succeed later"""
    field: NotRequired[str]
    """the invalid field"""
    limit: NotRequired[int]
    """the limit that was exceeded"""
    turn: NotRequired[TurnName]
    """of `busy` and `queue_full`: the turn that runs or waits"""
    retry_after: NotRequired[Annotated[float, Rule(schema={"type": "number", "minimum": 0})]]
    """of `rate_limited`: the delay before the next attempt in seconds"""
    reason: NotRequired[str]
    """of `refused`: the host's own code"""
    ref: NotRequired[str]
    """of `internal`: the reference in the server's log"""


class Session(SessionState):
    """A session, without its messages."""

    waiting: Count
    """number of waiting turns"""
    pinned: bool
    """whether its owner pinned it"""
    held: bool
    """whether it is on hold, so that nothing can be removed"""
    expires_at: Time | None
    """when it expires without a new message; null for never"""
    messages: Count
    """number of its messages"""
    created_at: Time
    """when it was created"""
    last_message_at: Time | None
    """when its newest message was stored; null without messages"""


class SessionPage(TypedDict):
    """Sessions, the last active first."""

    sessions: list[Session]
    next: str | None
    """the cursor of the next page; null on the last one"""


class Purged(TypedDict):
    """A purged session."""

    undo: Count
    """the number with which it can be restored"""
    until: Time
    """until when it can be restored"""


class RemovedSession(TypedDict):
    """A purged session that can be restored."""

    undo: Count
    """the number with which it can be restored"""
    key: SessionKey
    """its former key"""
    title: Title
    """its title"""
    messages: Count
    """number of its messages"""
    removed_at: Time
    """when it was purged"""
    until: Time
    """until when it can be restored"""


class RemovedPage(TypedDict):
    """Purged sessions, the last one first."""

    removed: list[RemovedSession]
    next: str | None
    """the cursor of the next page; null on the last one"""


class SessionHead(SessionState):
    """The state of a session, with the messages that a client has missed."""

    waiting: Count
    """number of waiting turns"""


class Message(server_frames.Message):
    """A message, with the fields of its frame."""

    html: NotRequired[str | None]
    """on request: its text as HTML that is safe to insert; null above the limits of one answer"""


class MessagePage(TypedDict):
    """Messages in order of seq. The last four fields are absent with `after` or `before`."""

    epoch: int
    """the epoch of the session"""
    first_seq: Seq
    """the floor: messages below it are removed"""
    last_seq: Count
    """seq of the newest message, 0 without messages"""
    superseded: list[Range]
    """ranges of seqs, inclusive, that later turns replaced or that were withdrawn"""
    messages: list[Message]
    cursor: NotRequired[str]
    """for the next request, or for `hello`"""
    reset: NotRequired[ResetReason | None]
    """why the client must drop its messages before it adds these; null if it keeps them"""
    more: NotRequired[bool]
    """whether the client has missed more messages"""
    session: NotRequired[SessionHead]
    """the current state of the session"""


class Sent(TypedDict):
    """The state of a sent message and of its turn."""

    turn: TurnName
    """the turn, which has the message's `client_id`"""
    status: TurnStatus
    """the turn's current status"""
    seq: Seq | None
    """seq of the message; null while it waits"""
    error: str
    """the error code, if the turn failed"""
    duplicate: bool
    """whether the `client_id` was sent before"""
    messages: list[Message]
    """the turn's messages after the user's; the newest that fit"""


class Version(TypedDict):
    """A version of a user's message."""

    turn: TurnName | None
    """its turn; null for a message that the host stored"""
    seq: Seq
    """seq of the user's message"""
    to_seq: Seq
    """the last seq before the next version or an earlier edit superseded it"""
    current: bool
    """whether this version is in effect"""


class VersionPage(TypedDict):
    """The versions of a user's message, the oldest first."""

    versions: list[Version]


class LiveTurn(TypedDict):
    """A turn that runs or waits."""

    turn: TurnName
    """its name: the `client_id` of its message"""
    status: Literal["waiting", "running"]
    """its status"""
    text: str
    """the text of the user's message"""
    since: Time
    """when its run started, or when it was admitted"""


class TurnPage(TypedDict):
    """The running turn, then the waiting turns in the order in which they start."""

    turns: list[LiveTurn]


class Turn(TypedDict):
    """A turn, whether it has ended or not."""

    turn: TurnName
    """its name: the `client_id` of its message"""
    status: TurnStatus
    """its current status"""
    seqs: Range | None
    """the first and the last seq of its messages; null without any"""
    error: str
    """the error code, if it failed"""
    model: str
    """the model that answered"""
    usage: Usage
    """token counts reported by the model"""


class Feedback(TypedDict):
    """The feedback on the reply of a turn."""

    turn: TurnName
    """the turn"""
    value: FeedbackValue | None
    """1 for a good reply, -1 for a bad one; null without feedback"""
    reason: str
    """the reason; empty without one"""


class Stopped(TypedDict):
    """The stopped turn; both fields are null if none ran."""

    turn: TurnName | None
    """the turn"""
    status: TurnStatus | None
    """its status: a running turn stops soon after the answer"""


class Ticket(TypedDict):
    """The right to open one websocket."""

    ticket: Annotated[str, text_rule(minLength=1)]
    """the secret"""
    expires_in: Count
    """its lifetime in seconds"""
    protocols: list[str]
    """the subprotocols that open a websocket with it"""


class Visitor(TypedDict):
    """A person without an account."""

    visitor: Annotated[str, text_rule(pattern="^[0-9a-f]{64}$")]
    """the visitor's name, which is no secret"""
    ends_at: Time
    """when the visitor ends without another request"""
    token: str | None
    """the secret of a new visitor of an embed, for `Authorization: Visitor <token>`; null on this
    site, where a cookie contains it"""


class AdoptableSession(TypedDict):
    """A session of a visitor."""

    key: SessionKey
    """the key"""
    title: Title
    """the title"""
    text: str
    """the first words of the first user message"""
    last_message_at: Time | None
    """when the last message was stored"""


class Adoptable(TypedDict):
    """The sessions of the browser's visitor."""

    visitor: Annotated[str, text_rule(pattern="^[0-9a-f]{64}$")] | None
    """the visitor; null without one"""
    sessions: list[AdoptableSession]
    """the sessions, the last active first"""
    done: bool
    """whether the user has already taken over sessions of this visitor: the POST returns their
    keys"""


class Adopted(TypedDict):
    """What was moved to the user."""

    keys: dict[str, str]
    """the new key of each session by its old key; most keys stay"""


class OwnErasure(TypedDict):
    """What was erased."""

    sessions: Count
    """number of sessions"""
    messages: Count
    """number of messages"""
    turns: Count
    """number of turns"""
    held: list[SessionKey]
    """keys of the sessions on hold, which stay"""


class HealthState(TypedDict):
    """Whether the app works. The fields after `status` need the secret `HEALTH_TOKEN`."""

    status: Literal["ok", "unavailable"]
    """the state, as the HTTP status"""
    database: NotRequired[bool]
    """whether the database answers"""
    channel_layer: NotRequired[bool]
    """whether the channel layer answers; true without a shared one"""
    tables: NotRequired[bool | None]
    """whether the columns of the tables fit the models; null without a database"""
    sweep_age: NotRequired[Annotated[float | None, Rule(schema={"type": "number", "minimum": 0})]]
    """seconds since this process found missed changes; null if it does not search for them"""
    overdue_turns: NotRequired[Count | None]
    """running turns that no process ends; null without a database"""
    unclaimed_turns: NotRequired[Count | None]
    """waiting turns that no process claims; null without a database"""
