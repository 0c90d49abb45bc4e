"""The host's function of BEFORE_SEND, which may refuse a person's message."""

from __future__ import annotations

from dataclasses import dataclass, replace

from chatmemory.access.actors import Actor
from chatmemory.conf import settings
from chatmemory.database.host_code import ask_host
from chatmemory.database.retries import retried
from chatmemory.models import Session, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """A person's message before it is stored."""

    session_key: str
    session: Session | None
    """None if the message opens it."""
    text: str
    content: str | list[dict[str, object]]
    """The text, or text blocks."""
    client_id: str
    replaces: int | None
    """The seq of the user message that it replaces: an edit, or a request for another answer."""


def check_message(by: Actor, scope: str, sending: Sending) -> None:
    """Call the function, unless the message is stored already. Holds no lock.

    Raises Refused, and any other error of the function.
    """
    if settings.BEFORE_SEND is None or by.kind not in ("user", "visitor"):
        return
    session = _read_session(scope, sending)
    if session is None or not _is_stored(session, sending):
        ask_host(settings.BEFORE_SEND, by, replace(sending, session=session))


@retried(is_repeatable=True)
def _read_session(scope: str, sending: Sending) -> Session | None:
    return Session.objects.at(scope, sending.session_key).first()


@retried(is_repeatable=True)
def _is_stored(session: Session, sending: Sending) -> bool:
    """Whether a turn has the client_id: a client that got no answer sends its message again."""
    return Turn.objects.filter(session=session, client_id=sending.client_id).exists()
