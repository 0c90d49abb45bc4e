"""The frames that the server sends, and how they are serialized.

The types document the frames; the tests validate each frame that is sent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Literal, NotRequired, TypedDict

from chatmemory import codec
from chatmemory.errors import BadInput, Busy, ChatMemoryError, RateLimited, Refused
from chatmemory.protocol.client_frames import (
    CLIENT_ID,
    FEEDBACK,
    ID,
    MAX_FETCH,
    MAX_TITLE_CHARS,
    SUPPORTED_VERSION,
    FrameId,
)
from chatmemory.protocol.shapes import Rule, text_rule, with_conditions

MAX_FRAME_OUT = 512 * 1024
"""Maximum size of a server's frame in bytes; the message in a larger one is truncated."""

SEQ = Rule(schema={"type": "integer", "minimum": 1})

Seq = Annotated[int, SEQ]
Time = Annotated[str, text_rule(format="date-time")]
Title = Annotated[str, text_rule(maxLength=MAX_TITLE_CHARS)]
SessionKey = Annotated[str, text_rule(minLength=1, maxLength=200)]
TurnName = Annotated[str, CLIENT_ID]
Range = Annotated[
    list[int], Rule(schema={"type": "array", "minItems": 2, "maxItems": 2, "items": SEQ.schema})
]
TurnStatus = Literal["waiting", "running", "complete", "interrupted", "failed", "cancelled"]
ResetReason = Literal["purged", "cleared", "restored", "behind", "ahead", "diverged", "other"]
ErrorCode = Literal[
    "bad_frame",
    "bad_json",
    "bad_shape",
    "too_deep",
    "bad_number",
    "bad_field",
    "unknown_field",
    "unknown_type",
    "not_ready",
    "unsupported_version",
    "bad_text",
    "empty",
    "too_many",
    "too_large",
    "unauthenticated",
    "other_person",
    "forbidden",
    "impersonated",
    "refused",
    "role_forbidden",
    "not_found",
    "unknown_turn",
    "history_cleared",
    "archived",
    "held",
    "conflict",
    "busy",
    "queue_full",
    "rate_limited",
    "unavailable",
    "internal",
]
FeedbackValue = Annotated[int, Rule(schema={"enum": [*FEEDBACK]})]
CloseCode = Literal[1009, 1011, 4400, 4401, 4403, 4404, 4408, 4409, 4410, 4426, 4429, 4503]


class SessionName(TypedDict):
    key: SessionKey
    title: Title


class Limits(TypedDict):
    max_message_chars: Seq
    max_frame_bytes: Seq


class RunningTurn(TypedDict):
    turn: TurnName
    status: Literal["waiting", "running"]
    since: Time | None


class WaitingTurn(TypedDict):
    turn: TurnName
    text: str


class Question(TypedDict):
    value: NotRequired[object]


class ToolCall(TypedDict):
    id: str
    name: str
    args: str
    cut: bool


class ToolResult(TypedDict):
    call: str
    name: str
    failed: bool


class Reasoning(TypedDict):
    text: str
    cut: bool


class Event(TypedDict):
    """progress: its `kind`, the `name` of the tool and its `state`; not stored"""

    kind: Literal["thinking", "tool"]
    name: str
    state: str


class Welcome(TypedDict):
    """The answer to `hello`."""

    v: Annotated[int, SUPPORTED_VERSION]
    """the protocol version"""
    session: SessionName
    """its `key`, in its canonical form, and `title`"""
    limits: Limits
    """`max_message_chars` of a message, `max_frame_bytes` of a frame; the client checks before it
    sends"""


class SessionState(TypedDict):
    """The state of a session, over a websocket and over REST."""

    key: SessionKey
    """its key in the URL"""
    title: Title
    """for display; can be empty"""
    epoch: int
    """changes with each clear and purge, and when one is undone"""
    first_seq: Seq
    """the floor: messages below it are removed"""
    last_seq: int
    """seq of the newest message, 0 without messages"""
    revision: int
    """increases with each change other than a new message"""
    archived: bool
    """whether it rejects new messages"""
    running: RunningTurn | None
    """the running turn: its `turn`, `status` (waiting if it was returned to the queue) and `since`,
    its start; null when idle"""


class Session(SessionState):
    """The current session. The client replaces its copy, unless that has the same epoch and a
    higher revision, and drops messages below `first_seq`."""

    live: NotRequired[bool]
    """false while changes by other processes may arrive late; true if absent"""
    superseded: list[Range]
    """ranges of seqs, inclusive, that later turns replaced or that were withdrawn, in order of
    their ends; shown folded"""
    waiting: list[WaitingTurn]
    """the waiting turns in order: `turn` and the user's `text`"""


class Message(TypedDict):
    """A new or changed message. The client stores it by `seq`, unless its copy has a higher
    revision or the seq is below all of its messages, and ends the streamed text of its turn and
    step."""

    seq: Seq
    """its number in the session; without gaps, never reused"""
    revision: int
    """the session's revision at the message's last change; 0 if never changed"""
    turn: Annotated[str | None, text_rule(maxLength=64)]
    """the turn that it belongs to"""
    step: int | None
    """number of the streamed text in the turn; null if not streamed"""
    client_id: Annotated[str | None, text_rule(maxLength=64)]
    """its idempotency key, given by its writer"""
    role: Literal["system", "user", "assistant", "tool"]
    """the role of its author"""
    status: Literal["complete", "interrupted", "failed"]
    """its final status"""
    text: str
    """its text"""
    content: list[object] | None
    """its blocks, if it is more than plain text"""
    cut: bool
    """whether the text is truncated or the blocks are missing; `GET` of one message returns all"""
    error: Annotated[str, text_rule(maxLength=32)]
    """the error code, if it failed"""
    asks: Question | None
    """a graph's question, as `value`; the next message answers it"""
    usage: dict[str, object] | None
    """token counts reported by the model"""
    model: Annotated[str, text_rule(maxLength=100)]
    """the model that answered"""
    redacted: bool
    """whether its content was deleted"""
    quarantined: bool
    """whether the stored row cannot be decoded"""
    feedback: FeedbackValue | None
    """on the last reply of a turn: the person's feedback, 1 (good) or -1 (bad)"""
    created_at: Time
    """when it was stored"""
    calls: NotRequired[list[ToolCall]]
    """the first 100 tool calls of the assistant: `id`, `name`, and the arguments `args` as JSON,
    `cut` if they are truncated: to 8000 characters together, but not in the REST answer for one
    message"""
    result: NotRequired[ToolResult]
    """of a tool: the `id` of the `call` that its text answers, the `name` of the tool, empty if it
    is unknown, and whether it `failed`"""
    reasoning: NotRequired[Reasoning]
    """the reasoning of the model, `cut` as the arguments of calls are"""


class Reset(TypedDict):
    """The client drops all messages; the newest 50 follow, unless the session was purged."""

    reason: ResetReason
    """`purged` or `cleared`: removed; `restored`: a removal was undone, or the database was
    restored; `behind`: more than 500 messages missed; `ahead`: a restored database has fewer
    messages than the client, or not its session; `diverged`: a restored database has other messages
    under these seqs;
    `other`: the cursor belongs to another session"""
    epoch: int
    """the new epoch"""
    lost: int | None
    """how many of the client's messages the database lost; null if the number is unknown"""


class Synced(TypedDict):
    """The client is up to date. After the first `synced` it resends unacknowledged messages."""

    cursor: Annotated[str, text_rule(minLength=1, maxLength=100)]
    """for the next `hello`; opaque to the client"""


class Snapshot(TypedDict):
    """Sets the streamed text of a step, and its latest event."""

    turn: TurnName
    """the running turn"""
    step: int
    """number of the streamed text in the turn"""
    text: str
    """the text up to now, or its beginning"""
    event: NotRequired[Event]
    """the run's latest event, if known"""


@with_conditions(oneOf=[{"required": ["text"]}, {"required": ["event"]}])
class Delta(TypedDict):
    """Appends to the streamed text of a step, or reports an event."""

    turn: TurnName
    """the running turn"""
    step: int
    """number of the streamed text in the turn"""
    text: NotRequired[Annotated[str, text_rule(minLength=1)]]
    """the text to append"""
    event: NotRequired[Event]


class Block(TypedDict):
    """The HTML of a part of the streamed text, after that of the parts before; only after a `hello`
    with `html`. Later text does not change it."""

    turn: TurnName
    """the running turn"""
    step: int
    """number of the streamed text in the turn"""
    start: int
    """where the part starts in the text, in characters (code points)"""
    end: int
    """where it ends; the text from here on is shown as text"""
    html: str
    """one or more blocks, which are safe to insert into a page; can end inside a table, after its
    head or a row; can be empty with `last`"""
    last: NotRequired[bool]
    """true if the stored text ends here; its `message` follows. If the `message` comes without it,
    the HTML of the whole text may differ, and is loaded over REST"""


@with_conditions(
    oneOf=[
        {"required": ["turn", "status"]},
        {"required": ["title"]},
        {"required": ["turn", "feedback"]},
        {"required": ["messages"]},
    ],
    dependentRequired={"seq": ["duplicate"], "duplicate": ["seq"]},
)
class Ok(TypedDict):
    """The answer to `send` and `stop`, with the turn, to `rename`, with the title, to `feedback`,
    with its value, and to `fetch`, with messages. It states what is committed."""

    id: Annotated[FrameId, ID]
    turn: NotRequired[TurnName]
    """the turn"""
    status: NotRequired[TurnStatus]
    """the turn's current status"""
    title: NotRequired[str]
    """of a `rename`: the new title"""
    feedback: NotRequired[FeedbackValue | None]
    """of a `feedback`: its value"""
    seq: NotRequired[Seq | None]
    """of a `send`: seq of the message, null while it waits"""
    duplicate: NotRequired[bool]
    """of a `send`: whether it was already stored"""
    messages: NotRequired[
        Annotated[
            list[Message],
            Rule(schema={"type": "array", "maxItems": MAX_FETCH, "items": {"type": "object"}}),
        ]
    ]
    """of a `fetch`: in order of seq, with the fields of a `message` frame"""


class Error(TypedDict):
    """A frame was rejected, or the session cannot be read now."""

    id: NotRequired[Annotated[FrameId, ID]]
    """the `id` of the frame; absent if it had no valid one"""
    code: ErrorCode
    """the error code, for programs"""
    message: Annotated[str, text_rule(minLength=1)]
    """the error text, for people"""
    retry: bool
    """whether the unchanged frame may succeed later"""
    retry_after_ms: NotRequired[int]
    """of `rate_limited`: the delay before the next attempt"""
    field: NotRequired[str]
    """the invalid field"""
    limit: NotRequired[int]
    """the limit that was exceeded"""
    turn: NotRequired[TurnName]
    """of `busy` and `queue_full`: the turn that runs or waits"""
    reason: NotRequired[str]
    """of `refused`: the host's own code"""
    ref: NotRequired[str]
    """of `internal`: the reference in the server's log"""


class Ping(TypedDict):
    """The client answers `pong` immediately, and reconnects after 45 s without any frame."""

    n: Seq
    """its number"""


class Bye(TypedDict):
    """The last frame: why the server closes the socket."""

    code: CloseCode
    """the close code that follows"""
    reason: Annotated[str, text_rule(pattern="^[a-z_]{1,40}$")]
    """the reason, for programs"""
    reconnect: bool
    """whether the client may connect again"""
    after_ms: int | None
    """the minimum delay before reconnecting; null for the client's own backoff"""
    message: NotRequired[str]
    """of `refused`: the host's sentence for the person, as plain text"""


FRAMES = (Welcome, Session, Message, Reset, Synced, Snapshot, Delta, Block, Ok, Error, Ping, Bye)


def dump(kind: str, /, **fields: object) -> str:
    """Serialize a frame."""
    return codec.dump_json({"type": kind, **fields})


def dump_message(fields: Mapping[str, object]) -> str:
    """Serialize a `message` frame, truncated with `cut` set if it exceeds MAX_FRAME_OUT."""
    frame = dump("message", **fields)
    if len(frame) * 4 <= MAX_FRAME_OUT or len(frame.encode()) <= MAX_FRAME_OUT:
        return frame
    return dump("message", **shortened(fields, MAX_FRAME_OUT // 16))


def shortened(fields: Mapping[str, object], chars: int) -> dict[str, object]:
    """Truncate a message's text and remove its blocks; REST returns the whole."""
    return {**fields, "text": str(fields["text"])[:chars], "content": None, "cut": True}


def dump_error(error: ChatMemoryError, *, id: FrameId | None = None, ref: str = "") -> str:  # noqa: A002  # the field's name
    """Serialize an `error` frame."""
    fields: dict[str, object] = {} if id is None else {"id": id}
    fields |= {"code": error.code, "message": str(error), "retry": error.retry}
    match error:
        case BadInput():
            fields |= {"field": error.field} if error.field else {}
            fields |= {} if error.limit is None else {"limit": error.limit}
        case Busy():
            fields |= {} if error.turn is None else {"turn": error.turn}
        case Refused():
            fields |= {"reason": error.reason} if error.reason else {}
        case RateLimited():
            # Rounded up: a client that repeats the frame a moment too early is refused again.
            fields["retry_after_ms"] = math.ceil(error.retry_after * 1000)
    return dump("error", **fields, **({"ref": ref} if ref else {}))
