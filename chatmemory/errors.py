"""The errors of the app: one class for each code, the codes being stable.

An error knows nothing of HTTP or websockets; each entry point has one table for that. The first
line of a docstring is the default sentence for people.
"""

from __future__ import annotations

from typing import ClassVar


class ChatMemoryError(Exception):
    """Something went wrong."""

    code: str = "internal"
    retry: ClassVar[bool] = False
    """Whether the same call may succeed a little later."""

    def __init__(self, message: str = "") -> None:
        documented = next(cls.__doc__ for cls in type(self).__mro__ if cls.__doc__)
        super().__init__(message or documented.partition("\n")[0])


class BadInput(ChatMemoryError):
    """This input can't be taken.

    `code` is one of bad_json, bad_shape, too_deep, bad_number, bad_field, unknown_field,
    bad_text, empty, too_many, too_large, bad_frame, unknown_type, not_ready or
    unsupported_version; `field` names what is wrong; `limit` is the bound that was passed.
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
    """Sign in first."""

    code = "unauthenticated"


class Forbidden(ChatMemoryError):
    """You may not do this."""

    code = "forbidden"


class RoleForbidden(Forbidden):
    """People write only as user."""

    code = "role_forbidden"


class NotFound(ChatMemoryError):
    """There is no such session."""

    code = "not_found"


class UnknownTurn(NotFound):
    """There is no such turn in this session."""

    code = "unknown_turn"


class Conflict(ChatMemoryError):
    """This client_id was used for another message."""

    code = "conflict"


class HistoryCleared(ChatMemoryError):
    """The history was cleared in the meantime."""

    code = "history_cleared"


class Archived(ChatMemoryError):
    """The session is archived and takes no more messages."""

    code = "archived"


class Held(ChatMemoryError):
    """The session is on hold; nothing may remove its messages."""

    code = "held"


class Busy(ChatMemoryError):
    """A reply is under way.

    `turn` is the client_id of the turn that runs or waits.
    """

    code = "busy"
    retry = True

    def __init__(self, message: str = "", *, turn: str | None = None) -> None:
        super().__init__(message)
        self.turn = turn


class QueueFull(Busy):
    """Too many messages wait already."""

    code = "queue_full"


class RateLimited(ChatMemoryError):
    """Too many messages in a short time.

    `retry_after` is in seconds.
    """

    code = "rate_limited"
    retry = True

    def __init__(self, message: str = "", *, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class MemoryUnavailable(ChatMemoryError):
    """The memory can't be reached just now; nothing was acknowledged."""

    code = "unavailable"
    retry = True


class ModelError(ChatMemoryError):
    """The model failed."""

    code = "model_error"


class ModelUnavailable(ModelError):
    """The model can't be reached."""

    code = "model_unavailable"


class ModelRateLimited(ModelError):
    """The model gets too many requests; try again in a moment.

    HTTP 429 of a provider.
    """

    code = "model_rate_limited"
    retry = True


class ModelAccessDenied(ModelError):
    """The model denies access; an operator has to fix it.

    HTTP 401 or 403 of a provider, or a used-up quota.
    """

    code = "model_access_denied"


class ModelNotFound(ModelError):
    """The provider has no such model; an operator has to fix it.

    HTTP 404 of a provider.
    """

    code = "model_not_found"


class ContextTooLong(ModelError):
    """The window has more tokens than the model takes."""

    code = "context_too_long"


class NoCheckpointer(ModelError):
    """The graph asked the user something, and has no checkpointer that would keep its place."""

    code = "no_checkpointer"


class ModelTimeout(ModelError):
    """The model took too long."""

    code = "model_timeout"
