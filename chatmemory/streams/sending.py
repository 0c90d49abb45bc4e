"""Sends of foreign clients: their ids, edits and regenerated replies, as turns."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from django.db.models import Q

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
    expect_seq: int | None = None
    """The newest user row that the client knows."""
    is_run: bool = False
    """Whether `request_id` names a run, of the first version too: Note [Runs]."""


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
    codec.check_client_id(send.message_id, field="messages")
    if send.request_id is not None:
        codec.check_storable(send.request_id, "requestId")
    key = session_key_of(send.chat, by)
    session = _find_session(key, by) if send.is_version else None
    found = None if session is None else find_message(session, send.message_id)
    if found is None:  # new: of a regenerated reply too, if the first request did not arrive
        waiting = _find_waiting(session, send) if session is not None and send.is_run else None
        client_id = waiting or _first_id(send)
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
        client_id=_version_id(newest, send),
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


def _find_session(key: str, by: Actor) -> Session | None:
    try:
        return services.get_session(session_key=key, by=by)
    except NotFound:
        return None


@retried(is_repeatable=True)
def find_message(session: Session, message_id: str) -> int | None:
    """Return the seq of the user's message with a client's id; None without one.

    Raises MemoryUnavailable.
    """
    rows = Message.objects.filter(session=session, role=Message.Role.USER)
    number = message_id.removeprefix(ROW_PREFIX)
    if number != message_id and number.isascii() and number.isdigit() and len(number) < 17:
        return rows.filter(seq=int(number)).values_list("seq", flat=True).first()
    # Not LIKE, which needs another index on PostgreSQL. Other ids are in the range too.
    low = f"{message_id}{RUN_MARK}"
    named = Q(client_id=message_id) | Q(client_id__gte=low, client_id__lt=f"{low}a")
    found = rows.filter(named).order_by("seq").values_list("seq", "client_id")
    ids = ((seq, name or "") for seq, name in found)
    return next((seq for seq, name in ids if message_id in (name, without_run(name))), None)


@retried(is_repeatable=True)
def _find_waiting(session: Session, send: Send) -> str | None:
    """Return the turn in which the same message waits, perhaps for another run."""
    if not session.waiting:
        return None
    names = session.turns.waiting().values_list("client_id", flat=True)
    return next((name for name in names if without_run(name) == send.message_id), None)


def _replayed(versions: list[Version], send: Send) -> tuple[str, int | None] | None:
    """Return the turn that an earlier request with this id created, and what it replaced."""
    if send.request_id is None:
        return None
    first = versions[0].turn
    if send.is_run and first is not None and first == _first_id(send):
        return first, None
    for older, newer in pairwise(versions):
        if newer.turn is not None and newer.turn == _version_id(older, send):
            return newer.turn, older.seq
    return None


# Note [Runs]
#
# A client of AG-UI gives each request a run id, by which it later asks for the same stream, without
# the id of the message. So the client_id of a turn that such a request creates ends with a mark of
# the run, from which the turn is found, and which distinguishes a repeated request from a
# regenerated reply. Clients see the ids of their messages without it. The mark has only digits,
# since all collations sort them before letters.
RUN_MARK = ":r"
MARK_DIGITS = 16
MAX_RUN_MESSAGE_CHARS = 64 - len(RUN_MARK) - MARK_DIGITS
"""The longest id of a message that is sent with a run."""

_MARKED = re.compile(rf"(.+){RUN_MARK}[0-9]{{{MARK_DIGITS}}}", re.ASCII)


def run_mark(run: str) -> str:
    """Return how the client_ids of the turns of a run end."""
    digest = hashlib.sha256(run.encode()).digest()
    number = int.from_bytes(digest) % 10**MARK_DIGITS
    return f"{RUN_MARK}{number:0{MARK_DIGITS}}"


def without_run(client_id: str) -> str:
    """Return the client's id of a message from the client_id of its turn."""
    found = _MARKED.fullmatch(client_id)
    return client_id if found is None else found[1]


def _first_id(send: Send) -> str:
    """Return the client_id of the first version of a message."""
    return send.message_id + _mark_of(send)


def _version_id(replaced: Version, send: Send) -> str:
    """Return the client_id of the version that a request makes of another one."""
    # A hash, since appended numbers would grow with each version, up to the limit of a client_id.
    name = f"{replaced.turn} {replaced.seq if send.request_id is None else send.request_id}"
    return f"v.{hashlib.sha256(name.encode()).hexdigest()[:40]}{_mark_of(send)}"


def _mark_of(send: Send) -> str:
    return run_mark(send.request_id) if send.is_run and send.request_id is not None else ""


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


def turn_reply_id(turn: str, number: int = 0) -> str:
    """Return a client's id of the reply of a turn; `number` counts its messages, if it has more."""
    return f"{REPLY_PREFIX}{turn}.{number}" if number else f"{REPLY_PREFIX}{turn}"


def key_of_url(chat: str, by: Actor) -> str:
    """Return the key of the session in a URL. Raises NotFound for an invalid id."""
    try:
        return session_key_of(chat, by)
    except BadInput as error:
        raise NotFound from error
