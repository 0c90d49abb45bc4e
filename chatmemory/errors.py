"""Error classes: one for each stable code, except that all codes of bad input share `BadInput`.

Errors know neither HTTP nor websockets: each entry point maps classes to answers in one table. The
first line of a class's docstring is its default text for people.
"""

from __future__ import annotations

import re
from typing import ClassVar

MAX_REFUSAL_CHARS = 500
"""A longer sentence of the host is truncated."""

_REASON = re.compile("[a-z][a-z0-9_]{0,39}")


class ChatMemoryError(Exception):
    """An internal error occurred."""

    code: str = "internal"
    retry: ClassVar[bool] = False
    """Whether the unchanged call may succeed later."""

    def __init__(self, message: str = "") -> None:
        documented = next(cls.__doc__ for cls in type(self).__mro__ if cls.__doc__)
        super().__init__(message or documented.partition("\n")[0])


class BadInput(ChatMemoryError):
    """The input is invalid.

    `code` is one of bad_json, bad_shape, too_deep, bad_number, bad_field, unknown_field,
    bad_text, empty, too_many, too_large, bad_frame, unknown_type, not_ready or
    unsupported_version. `field` is the path of the invalid value, empty for the whole input.
    `limit` is the limit that the input exceeds.
    """

    code = "bad_field"

    def __init__(
        self,
        message: str = "",
        *,
        code: str = "bad_field",
        field: str = "",
        limit: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.field = field
        self.limit = limit


class Unauthenticated(ChatMemoryError):
    """Authentication is required. Sign in first."""

    code = "unauthenticated"


class OtherPerson(Unauthenticated):
    """You are signed in as someone else. Reload the page."""

    code = "other_person"


class Forbidden(ChatMemoryError):
    """You do not have permission to do this."""

    code = "forbidden"


class RoleForbidden(Forbidden):
    """Clients may write only messages with the role user."""

    code = "role_forbidden"


class Impersonated(Forbidden):
    """You view this as another person, so you can't write."""

    code = "impersonated"


class Refused(ChatMemoryError):
    """This was refused.

    For the host's functions, such as that of `BEFORE_SEND`. The person sees `message` as plain
    text; `reason` is the host's own code for programs. Raises ValueError if it is not 1 to 40
    lowercase letters, digits or underscores, a letter first.
    """

    code = "refused"

    def __init__(self, message: str = "", *, reason: str = "") -> None:
        if reason and not _REASON.fullmatch(reason):
            raise ValueError(f"{reason!r} is not a reason, such as 'plan' or 'second_factor'")
        # It may be a lazy translation. A lone surrogate, as of a cut text, cannot be sent.
        sentence = str(message).encode(errors="replace").decode()
        if len(sentence) > MAX_REFUSAL_CHARS:
            sentence = f"{sentence[: MAX_REFUSAL_CHARS - 1]}…"
        super().__init__(sentence)
        self.reason = reason
        self.is_final = False
        """Whether the login may do nothing more, so that its socket closes."""


class NotFound(ChatMemoryError):
    """Session not found."""

    code = "not_found"


class UnknownTurn(NotFound):
    """Turn not found in this session."""

    code = "unknown_turn"


class Conflict(ChatMemoryError):
    """This client_id was already used for a different message."""

    code = "conflict"


class HistoryCleared(ChatMemoryError):
    """The history was cleared after this operation started. Reload the session."""

    code = "history_cleared"


class Archived(ChatMemoryError):
    """The session is archived and accepts no new messages."""

    code = "archived"


class Held(ChatMemoryError):
    """The session is on hold, so its messages cannot be removed."""

    code = "held"


class Busy(ChatMemoryError):
    """A turn is running or waiting in this session. Retry after it ends.

    `turn` is that turn's client_id.
    """

    code = "busy"
    retry = True

    def __init__(self, message: str = "", *, turn: str | None = None) -> None:
        super().__init__(message)
        self.turn = turn


class QueueFull(Busy):
    """The queue of this session is full. Retry after a turn ends."""

    code = "queue_full"


class RateLimited(ChatMemoryError):
    """Too many requests. Retry later.

    `retry_after` is the delay in seconds.
    """

    code = "rate_limited"
    retry = True

    def __init__(self, message: str = "", *, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class MemoryUnavailable(ChatMemoryError):
    """The memory is unavailable, and nothing was acknowledged. Retry later."""

    code = "unavailable"
    retry = True


class ModelError(ChatMemoryError):
    """The model failed."""

    code = "model_error"


class ResponderError(ModelError):
    """The bot failed. An operator must check its code.

    For every error of the responder that no client of a provider raised.
    """

    code = "responder_error"


class InstructionsFailed(ModelError):
    """The function of INSTRUCTIONS_FOR failed. An operator must check its code."""

    code = "instructions_failed"


class TurnEndError(ModelError):
    """What an app stores at the end of a turn failed. An operator must check its code."""

    code = "turn_end_error"


class ModelUnavailable(ModelError):
    """The model is unavailable.

    Without a connection, and for HTTP status 502, 503 or 529 (overloaded) of a provider.
    """

    code = "model_unavailable"


class ModelRateLimited(ModelError):
    """The model received too many requests. Retry later.

    For HTTP status 429 of a provider.
    """

    code = "model_rate_limited"
    retry = True


class ModelAccessDenied(ModelError):
    """The model provider denied access. An operator must check the API key and quota.

    For HTTP status 401, 402 or 403 of a provider, and for an exhausted quota.
    """

    code = "model_access_denied"


class ModelNotFound(ModelError):
    """The provider has no such model. An operator must check the model's name.

    For HTTP status 404 of a provider.
    """

    code = "model_not_found"


class ContextTooLong(ModelError):
    """The input exceeds the model's token limit."""

    code = "context_too_long"


class Blocked(ModelError):
    """A content filter blocked the message or the reply.

    Of the provider, as an error or as the end of a reply; or the model refused to answer.
    """

    code = "blocked"


class NoCheckpointer(ModelError):
    """The graph interrupted for user input, but has no checkpointer to resume from."""

    code = "no_checkpointer"


class ModelTimeout(ModelError):
    """The model did not finish in time."""

    code = "model_timeout"
