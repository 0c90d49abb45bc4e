"""A run of a turn in this process: its partial text, and what it stores.

The thread that claims the end of a run stores it: the run's own task, or the keeper at a stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

from chatmemory import codec
from chatmemory.access.rates import count_tokens
from chatmemory.codec.usage import sum_usage
from chatmemory.database.pool import in_pool
from chatmemory.database.reads import read_session_with_owner
from chatmemory.database.retries import retried
from chatmemory.errors import BadInput, MemoryUnavailable, ModelError
from chatmemory.live.hub import hub
from chatmemory.live.texts import LiveText, SessionRef
from chatmemory.models import Message
from chatmemory.responders import Progress, Request
from chatmemory.services.derived.writing import Seen
from chatmemory.services.turns import progress
from chatmemory.services.turns.at_end import EndingTurn
from chatmemory.services.turns.claims import Claim
from chatmemory.services.turns.context import messages_before
from chatmemory.services.turns.progress import FinishedTurn
from chatmemory.window import read_question, read_window

logger = logging.getLogger(__name__)

PARTIAL_SECONDS = 1.0
PARTIAL_CHARS = 2_048
"""The partial text is saved after this time or this many new characters."""
PARTIAL_SHARE = 8
"""A long text is saved again when it has grown by an eighth, or after a second. Each save writes
the whole text, so a save every 2 KB would write a quadratic number of bytes."""
END_RETRY_SECONDS = 1.0
"""Pause before the end of a run is stored again after a database error."""
MAX_EVENTS = 1_000
"""Progress events of one run that are published; later progress is dropped."""

MAX_MILLISECONDS = 2**31 - 1
"""The highest value of `Turn.first_text_ms`: 24 days."""

COMPLETE, INTERRUPTED, FAILED = (
    Message.Status.COMPLETE.value,
    Message.Status.INTERRUPTED.value,
    Message.Status.FAILED.value,
)


@dataclass(eq=False, slots=True)
class Run:
    """A turn that runs in this process."""

    claim: Claim
    text: LiveText
    began_at: float = field(default_factory=time.monotonic)
    first_text_ms: int | None = None
    """Milliseconds from `began_at` to the first text that a reader could see."""
    is_started: bool = False
    last: Mapping[str, object] | None = None
    """The last finished message. The end of the turn stores it in the same transaction."""
    last_id: str = ""
    """The batch ID of an unconfirmed write of `last`: it may be stored. Otherwise empty."""
    end_id: str = field(default_factory=codec.new_client_id)
    """The batch ID of the end; all attempts use it, so only one is stored."""
    events: int = 0
    """Published progress events."""
    window_tokens: int = 0
    """Tokens of the model's input, as counted when its messages were stored."""
    seen: Seen | None = None
    """The session before the window was read."""
    left: dict[str, Any] = field(default_factory=dict)
    """What the responder leaves for the end of the turn."""
    usage: Mapping[str, object] = field(default_factory=dict)
    """The sum of what the model reported with the stored messages of this turn."""
    chars: int = 0
    """Characters of this step."""
    is_repaired: bool = False
    """Whether characters that no database can store were replaced in this step."""
    saved_chars: int = 0
    saved_at: float = field(default_factory=time.monotonic)
    save_task: asyncio.Task[None] | None = None
    is_fence_lost: bool = False
    """Whether a save found that another process ended the turn. See Note [Fence]."""
    is_complete: bool = False
    """Whether the end is stored, and the reply is complete."""
    has_next_turn: bool = False
    """Whether the end is stored and another turn of the session waits."""
    task: asyncio.Task[None] | None = None
    loop: asyncio.AbstractEventLoop | None = None
    store_lock: threading.Lock = field(default_factory=threading.Lock)
    """Locked while rows are stored. A cancelled task may still store `last` in a pool thread, and
    the thread that stores the end must know whether it did."""
    _end_lock: threading.Lock = field(default_factory=threading.Lock)
    """Acquired once, by `claim_end`."""

    @property
    def ref(self) -> SessionRef:
        """The key of its text in the hub."""
        return SessionRef(self.claim.session_pk, self.claim.epoch)

    def claim_end(self) -> bool:
        """Claim the right to end this run; return whether the caller has it."""
        # Never released: the task, the keeper, a stop and the drain compete for the end of a run.
        return self._end_lock.acquire(blocking=False)

    def begin_step(self, step: int) -> None:
        """Replace the text by an empty one of this step."""
        self.text = hub.begin_text(self.ref, self.claim.client_id, step)
        self.chars = self.saved_chars = 0
        self.is_repaired = False

    def add_text(self, text: str) -> None:
        """Add to the text of this step, and publish it."""
        if not text:  # some models send empty text repeatedly while they reason
            return
        self.note_text()
        storable = codec.storable(text)
        self.is_repaired |= storable != text
        # No lock: only the run's task appends, and each reader keeps its position in the list.
        self.text.pieces.append(storable)
        self.chars += len(text)
        hub.publish(self.ref)

    def note_text(self) -> None:
        """Record the time of the first text; later calls change nothing."""
        if self.first_text_ms is None:
            elapsed_ms = int((time.monotonic() - self.began_at) * 1000)
            self.first_text_ms = min(elapsed_ms, MAX_MILLISECONDS)

    def add_progress(self, event: Progress) -> None:
        """Publish an event; does nothing above `MAX_EVENTS`."""
        if self.events < MAX_EVENTS:
            self.events += 1
            self.text.pieces.append(event)
            hub.publish(self.ref)

    @property
    def is_save_due(self) -> bool:
        """Whether enough text or time has passed since the last save."""
        grown = self.chars - self.saved_chars
        is_much = grown >= max(PARTIAL_CHARS, self.saved_chars // PARTIAL_SHARE)
        return is_much or time.monotonic() - self.saved_at >= PARTIAL_SECONDS

    @property
    def is_ending(self) -> bool:
        return self._end_lock.locked()

    def ending(self, status: str) -> EndingTurn | None:
        """Return what code of other apps gets at the end; None before the window was read."""
        if self.seen is None:
            return None
        return EndingTurn(
            seen=self.seen,
            turn=self.claim.client_id,
            user_seq=self.claim.user_seq,
            status=status,
            # A cancelled responder may still change its own.
            left=MappingProxyType(dict(self.left)),
        )

    def cancel(self) -> None:
        """Cancel the run's task without waiting for it. Any thread may call it."""
        if self.loop is not None and self.task is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and the task with it
                self.loop.call_soon_threadsafe(self.task.cancel)


@retried(is_repeatable=True)
def read_request(*, claim: Claim, left: dict[str, Any]) -> Request | None:
    """Read the input of a responder for a turn; None if the fence is lost.

    `left` gets what functions of `before_question` leave for the end of the turn.

    Raises ModelError if the user's message cannot be read.
    """
    # The owner is joined because a responder is async and cannot query it.
    session = read_session_with_owner(claim.session_pk)
    if session is None:
        return None
    window = read_window(
        session,
        only_if=progress.unanswered_conditions(claim),
        before_last=partial(messages_before, session, claim.client_id, left),
    )
    messages, answers = window.messages, None
    if window.may_answer:
        answers = read_question(session, turn_pk=claim.turn_pk, user_seq=claim.user_seq)
    # Note [Fence]: a lost fence never becomes valid again. If it is valid now, it was valid during
    # each of these reads, and the last row is still this turn's.
    is_checked = window.is_checked and not window.may_answer
    if not is_checked and not progress.is_unanswered(claim):
        return None
    if not messages or messages[-1]["role"] != Message.Role.USER:
        raise ModelError("The last message of the window is not the user's.")
    return Request(
        session=session,
        turn=claim.client_id,
        messages=messages,
        answers=answers,
        window_tokens=window.tokens,
    )


def save_text(run: Run) -> bool:
    """Save the partial text of this step; return False if the fence is lost."""
    text = run.text
    return progress.save_partial(claim=run.claim, text=text.text, step=text.step)


def store_last(run: Run) -> bool:
    """Store `last` and begin the next step; return False if the fence is lost."""
    with run.store_lock:
        return _add_last(run)


def _add_last(run: Run) -> bool:
    """Store `last`. The caller has locked `store_lock`."""
    last = run.last
    if last is None:
        return True
    batch_id = run.last_id or codec.new_client_id()
    step = run.text.step if last.get("role") == "assistant" else None
    try:
        added = progress.add_rows(claim=run.claim, messages=[last], step=step, batch_id=batch_id)
    except MemoryUnavailable:
        # The commit may have succeeded. The next attempt finds its rows by this ID.
        run.last_id = batch_id
        raise
    if not added:
        return False
    _count_tokens(run, last)
    run.usage = _usage_with(run, last)
    run.last, run.last_id = None, ""
    if step is not None:
        run.begin_step(step + 1)
    return True


def needs_row(message: Mapping[str, object] | None) -> bool:
    """Return whether the message cannot be the last of its turn."""
    return bool(message and (message.get("tool_calls") or message.get("role") == "tool"))


def store_end(run: Run, status: str, error: str) -> bool:
    """Store the end of a run if its fence is valid; return False if the caller must retry."""
    with run.store_lock:
        try:
            try:
                ended = _add_end(run, status, error)
            except BadInput as problem:
                ended = _add_storable_end(run, problem)
        except MemoryUnavailable:
            logger.warning("turn %s: the end cannot be stored yet", run.claim.client_id)
            return False
    if ended is None:
        logger.info("turn %s was ended by another process", run.claim.client_id)
    run.is_complete = ended is not None and ended.status == COMPLETE
    run.has_next_turn = ended is not None and ended.waiting > 0
    return True


def store_end_durably(run: Run, status: str, error: str) -> None:
    """Store the end of a run; retry until the database is available."""
    while not store_end(run, status, error):
        time.sleep(END_RETRY_SECONDS)


async def astore_end_durably(run: Run, status: str, error: str) -> None:
    while not await astore_end(run, status, error):  # noqa: ASYNC110  # no event announces it
        await asyncio.sleep(END_RETRY_SECONDS)


def _add_end(run: Run, status: str, error: str) -> FinishedTurn | None:
    """Store the end with `last` or the partial text. The caller has locked `store_lock`."""
    # An unconfirmed message is repeated separately, with its own batch ID. Tool calls and results
    # are also stored separately, since the last row of a turn is never one of them.
    if (run.last_id or needs_row(run.last)) and not _add_last(run):
        return None
    last = run.last if run.last is not None else _partial_message(run)
    if status != COMPLETE:  # an interrupted turn cannot be answered
        last = {name: value for name, value in last.items() if name != "asks"}
    metadata = last.get("response_metadata")
    model = metadata.get("model_name") if isinstance(metadata, Mapping) else None
    ended = progress.finish_turn(
        claim=run.claim,
        status=status,
        error=error,
        message=last,
        step=run.text.step,
        model=str(model or "")[:100],
        usage=_usage_with(run, last) or None,
        first_text_ms=run.first_text_ms,
        batch_id=run.end_id,
        ending=run.ending(status),
    )
    if ended is not None:
        _count_tokens(run, last)
    return ended


def _add_storable_end(run: Run, problem: BadInput) -> FinishedTurn | None:
    """End the turn as failed, with as much of its text as the database can store.

    The caller has locked `store_lock`.
    """
    logger.error(
        "turn %s: the database cannot store its end: %s", run.claim.client_id, problem.code
    )
    is_reply = run.last is not None and run.last.get("role") == Message.Role.ASSISTANT
    text = codec.text_of(run.last.get("content")) if run.last and is_reply else run.text.text
    run.last_id = ""  # nothing of this message was stored
    for storable in _STORABLE:
        run.last = {"role": "assistant", "content": storable(text), "repaired": ["content"]}
        with contextlib.suppress(BadInput):
            return _add_end(run, FAILED, problem.code)
    run.last = {"role": "assistant", "content": "", "repaired": ["content"]}
    return _add_end(run, FAILED, problem.code)


_STORABLE: tuple[Callable[[str], str], ...] = (
    lambda text: re.sub(r"[^\0-\uffff]", "\ufffd", text),  # utf8mb3 of MariaDB
    lambda text: text.encode("cp1252", "replace").decode("cp1252"),  # its latin1
    lambda text: text.encode("ascii", "replace").decode("ascii"),
)
"""What a database with another character set can store of a text."""


def _usage_with(run: Run, message: Mapping[str, object]) -> Mapping[str, object]:
    """Return the usage of the turn so far, including this message's."""
    usage = message.get("usage")
    return sum_usage(run.usage, usage) if isinstance(usage, Mapping) else run.usage


def _count_tokens(run: Run, message: Mapping[str, object]) -> None:
    """Count the tokens of this message as the model reports them, else estimate them."""
    if message.get("role") != Message.Role.ASSISTANT:
        return
    used = _reported_tokens(message.get("usage"))
    if used is None and message.get("content"):
        used = run.window_tokens + codec.count_tokens(message)
    if used:
        count_tokens(scope=run.claim.scope, tokens=used)


def _reported_tokens(usage: object) -> int | None:
    numbers = usage if isinstance(usage, Mapping) else {}
    for names in (("total_tokens",), ("input_tokens", "output_tokens")):
        found = [number for name in names if isinstance(number := numbers.get(name), int)]
        if found:
            return max(0, sum(found))
    return None


def _partial_message(run: Run) -> Mapping[str, object]:
    repaired = {"repaired": ["content"]} if run.is_repaired else {}
    return {"role": "assistant", "content": run.text.text, **repaired}


def _lane_of_run(run: Run, *_: object) -> tuple[str, str]:
    # Note [Lanes]: each of these writes may wait for a lock, of the session or of its turn.
    return (run.claim.scope, run.claim.key)


aread_request = in_pool(read_request)
asave_text = in_pool(save_text, lane=_lane_of_run)
astore_last = in_pool(store_last, lane=_lane_of_run)
astore_end = in_pool(store_end, lane=_lane_of_run)
