"""Sends of foreign clients: their ids, edits and regenerated replies, as turns."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from chatmemory import codec, services
from chatmemory.codec.checks import CLIENT_PREFIX
from chatmemory.database.retries import retried
from chatmemory.errors import BadInput, NotFound
from chatmemory.live.runner import runner
from chatmemory.models import Message, Session
from chatmemory.services import Actor, Admitted
from chatmemory.services.turns.versions import Version, list_versions

ROW_PREFIX = "m."
"""How the ids of messages begin that have no client_id: their seq follows."""
REPLY_PREFIX = "a."
"""How the ids of replies begin: the client_id of their turn follows, or a row's id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """A user's message, as a foreign client sends it."""

    chat: str
    """The client's id of the session."""
    message_id: str
    """The client's id of the message, which all its versions have."""
    content: str | list[dict[str, str]]
    is_version: bool
    """Whether it replaces the stored message with this id: edited, or to get another reply."""
    request_id: str | None
    """The idempotency key of a version."""
    expect_seq: int | None
    """The newest user row that the client knows."""


def session_key_of(chat: str, by: Actor) -> str:
    """Return the key of the session that a client calls `chat`.

    A version-4 UUID, or a key of a session that exists, is the key itself; another id follows
    `ui:`, which is reserved for clients. Raises BadInput, MemoryUnavailable.
    """
    codec.check_key(chat, field="id")
    if _may_create(chat) or _exists(chat, by):
        return chat
    return codec.check_key(CLIENT_PREFIX + chat, field="id")


@retried(is_repeatable=True)
def _exists(key: str, by: Actor) -> bool:
    return services.sessions_of(by).filter(key=key).exists()


def admit(send: Send, by: Actor) -> Admitted:
    """Store a message with its turn; create the session if it is missing.

    A repeated send returns the current state of its turn. Raises the errors of `admit_turn`.
    """
    key = session_key_of(send.chat, by)
    found = find_message(key, send.message_id, by) if send.is_version else None
    if found is None:  # new: of a regenerated reply too, if the first request did not arrive
        client_id = codec.check_client_id(send.message_id, field="messages")
        return _admit(key, send, by, client_id=client_id, create=_may_create(key))
    versions = list_versions(session_key=key, seq=found, by=by)
    replayed = _replayed(versions, send)
    if replayed is not None:
        turn, replaces = replayed
        return _admit(key, send, by, client_id=turn, replaces=replaces, expect_seq=replaces)
    newest = versions[-1]
    return _admit(
        key,
        send,
        by,
        client_id=_version_id(newest, send.request_id),
        replaces=newest.seq,
        expect_seq=_newest_user_seq(key, by) if send.expect_seq is None else send.expect_seq,
    )


def _may_create(key: str) -> bool:
    """Whether a client may create the session: all other keys belong to the host."""
    return codec.is_new_key(key) or key.startswith(CLIENT_PREFIX)


def _admit(key: str, send: Send, by: Actor, **more: Any) -> Admitted:
    admitted = services.admit_turn(
        session_key=key, content=send.content, by=by, owner=runner.owner, **more
    )
    if admitted.claim is not None:
        runner.launch(admitted.claim)
    return admitted


def find_message(key: str, message_id: str, by: Actor) -> int | None:
    """Return the seq of the user's message with a client's id; None without one.

    Raises MemoryUnavailable.
    """
    try:
        return _find(services.get_session(session_key=key, by=by), message_id)
    except NotFound:
        return None


@retried(is_repeatable=True)
def _find(session: Session, message_id: str) -> int | None:
    rows = Message.objects.filter(session=session, role=Message.Role.USER)
    number = message_id.removeprefix(ROW_PREFIX)
    if number != message_id and number.isascii() and number.isdigit() and len(number) < 17:
        rows = rows.filter(seq=int(number))
    else:
        rows = rows.filter(client_id=message_id)
    return rows.values_list("seq", flat=True).first()


def _replayed(versions: list[Version], send: Send) -> tuple[str, int] | None:
    """Return the turn that an earlier request with this id created, and what it replaced."""
    if send.request_id is None:
        return None
    for older, newer in pairwise(versions):
        if newer.turn is not None and newer.turn == _version_id(older, send.request_id):
            return newer.turn, older.seq
    return None


def _version_id(replaced: Version, request_id: str | None) -> str:
    """Return the client_id of the version that a request makes of another one."""
    # A hash, since appended numbers would grow with each version, up to the limit of a client_id.
    name = f"{replaced.turn} {replaced.seq if request_id is None else request_id}"
    return f"v.{hashlib.sha256(name.encode()).hexdigest()[:40]}"


def _newest_user_seq(key: str, by: Actor) -> int:
    return _read_newest(services.get_session(session_key=key, by=by))


@retried(is_repeatable=True)
def _read_newest(session: Session) -> int:
    users = Message.objects.filter(session=session, role=Message.Role.USER)
    return users.order_by("-seq").values_list("seq", flat=True).first() or 0


def check_content(parts: object) -> str | list[dict[str, str]]:
    """Return the texts of a message's parts. Raises BadInput for files and other content."""
    if not isinstance(parts, list):
        raise BadInput("A message needs a list of parts.", field="parts")
    texts: list[dict[str, str]] = []
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text" and isinstance(part.get("text"), str):
            texts.append({"type": "text", "text": part["text"]})
        elif not isinstance(kind, str) or not kind.startswith("data-"):
            raise BadInput("Only text can be sent, no files.", field="parts")
    if not texts:
        raise BadInput("A message needs a part with text.", field="parts", code="empty")
    return texts[0]["text"] if len(texts) == 1 else texts


def turn_reply_id(turn: str) -> str:
    """Return a client's id of the reply of a turn."""
    return f"{REPLY_PREFIX}{turn}"


def key_of_url(chat: str, by: Actor) -> str:
    """Return the key of the session in a URL. Raises NotFound for an invalid id."""
    try:
        return session_key_of(chat, by)
    except BadInput as error:
        raise NotFound from error
