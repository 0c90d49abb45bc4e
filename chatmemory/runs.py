"""Turns at work in this process: the text so far, and what of it is stored.

A run that is ended by another than its own task, as by a stop, is stored by that thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from chatmemory import codec, services
from chatmemory.errors import MemoryUnavailable, ModelError
from chatmemory.hub import LiveText, Place, hub
from chatmemory.models import Message, Session
from chatmemory.responders import Progress, Request
from chatmemory.services import Claim, Ended
from chatmemory.services.faults import durably
from chatmemory.services.limits import count_tokens
from chatmemory.services.pool import in_pool
from chatmemory.services.runs import is_unanswered
from chatmemory.window import read_question, read_window

logger = logging.getLogger(__name__)

PARTIAL_SECONDS = 1.0
PARTIAL_CHARS = 2_048
PARTIAL_SHARE = 8
"""A long text is saved again when it grew by this part of it, or a second passed: each time it is
saved whole, which at every 2 KB would cost more the longer it is."""
MAX_EVENTS = 1_000
"""How much progress of a run is told; the rest of it is not."""

COMPLETE, INTERRUPTED, FAILED = (
    Message.Status.COMPLETE.value,
    Message.Status.INTERRUPTED.value,
    Message.Status.FAILED.value,
)


class FenceLost(Exception):
    """Another process ended this turn."""


@dataclass(eq=False, slots=True)
class Run:
    """A turn at work in this process."""

    claim: Claim
    text: LiveText
    began: float = field(default_factory=time.monotonic)
    is_started: bool = False
    last: Mapping[str, object] | None = None
    """The last finished message, held back: the end of the turn stores it."""
    last_id: str = ""
    """Under which it may be stored already: the database was asked and did not answer."""
    end_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Under which the end is stored, however often that is tried."""
    events: int = 0
    """How much progress was told."""
    window_tokens: int = 0
    """What the model was given, as counted when it was stored."""
    chars: int = 0
    """How much was said in this step."""
    is_repaired: bool = False
    """Whether something in it was said that no database holds."""
    saved_chars: int = 0
    saved_at: float = field(default_factory=time.monotonic)
    saving: asyncio.Task[None] | None = None
    is_lost: bool = False
    """Whether another ended the turn, as a save of its text found out."""
    is_followed: bool = False
    """Whether another turn waits for this one's end, which is stored."""
    task: asyncio.Task[None] | None = None
    loop: asyncio.AbstractEventLoop | None = None
    storing: threading.Lock = field(default_factory=threading.Lock)
    """Held while the last message is stored: who ends the run stores it only if it is not yet."""
    _ending: threading.Lock = field(default_factory=threading.Lock)

    @property
    def place(self) -> Place:
        """Where sockets find its text."""
        return Place(self.claim.session_pk, self.claim.epoch)

    def take_end(self) -> bool:
        """Whether the caller is the first who wants to end the run, and so may."""
        return self._ending.acquire(blocking=False)

    def begin_step(self, step: int) -> None:
        """From now on the text is that of this step."""
        self.text = hub.begin_text(self.place, self.claim.client_id, step)
        self.chars = self.saved_chars = 0
        self.is_repaired = False

    def say(self, text: str) -> None:
        """Add to the text of this step, for all who watch."""
        if not text:  # some models send nothing, again and again, while they think
            return
        storable = codec.storable(text)
        self.is_repaired |= storable != text
        self.text.pieces.append(storable)
        self.chars += len(text)
        hub.grew(self.place)

    def tell(self, event: Progress) -> None:
        """Show what the run is at, unless it has told very much already."""
        if self.events < MAX_EVENTS:
            self.events += 1
            self.text.pieces.append(event)
            hub.grew(self.place)

    @property
    def is_save_due(self) -> bool:
        """Whether so much is not saved yet that another save is worth it."""
        grown = self.chars - self.saved_chars
        is_much = grown >= max(PARTIAL_CHARS, self.saved_chars // PARTIAL_SHARE)
        return is_much or time.monotonic() - self.saved_at >= PARTIAL_SECONDS

    @property
    def is_ending(self) -> bool:
        return self._ending.locked()

    def cancel(self) -> None:
        """Tell the responder to give up; from any thread, without waiting."""
        if self.loop is not None and self.task is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and the task with it
                self.loop.call_soon_threadsafe(self.task.cancel)


def read_request(*, claim: Claim) -> Request:
    """Read what a responder needs to answer a turn.

    Raises FenceLost if the turn was taken from this run, ModelError if the user's message cannot
    be read.
    """

    def work() -> Request:
        # With the owner: a responder is async and cannot read it.
        session = Session.objects.select_related("owner").filter(pk=claim.session_pk).first()
        if session is None:
            raise FenceLost
        window = read_window(session)
        messages = window.messages
        answers = read_question(session, turn_pk=claim.turn_pk, user_seq=claim.user_seq)
        # A lost fence never becomes valid again. So if it is valid now, it was valid during each
        # of these reads, and the last row is still this turn's.
        if not is_unanswered(claim):
            raise FenceLost
        if not messages or messages[-1]["role"] != Message.Role.USER:
            raise ModelError("There is nothing to answer.")
        return Request(
            session=session,
            turn=claim.client_id,
            messages=messages,
            answers=answers,
            window_tokens=window.tokens,
        )

    return durably(work, is_repeatable=True)


def save_text(run: Run) -> bool:
    """Keep the text of this step so far; False if the fence is lost."""
    text = run.text
    return services.save_partial(claim=run.claim, text=text.text, step=text.step)


def store_last(run: Run) -> bool:
    """Store the message that was held back, and begin the next step; False if the fence is lost."""
    with run.storing:
        return _add_last(run)


def _add_last(run: Run) -> bool:
    """Needs `storing`."""
    last = run.last
    if last is None:
        return True
    batch_id = run.last_id or uuid.uuid4().hex
    step = run.text.step if last.get("role") == "assistant" else None
    try:
        added = services.add_rows(claim=run.claim, messages=[last], step=step, batch_id=batch_id)
    except MemoryUnavailable:
        run.last_id = batch_id
        raise
    if not added:
        return False
    _count_tokens(run, last)
    run.last, run.last_id = None, ""
    if step is not None:
        run.begin_step(step + 1)
    return True


def needs_row(message: Mapping[str, object] | None) -> bool:
    """Return whether a held message cannot be the last of its turn."""
    return bool(message and (message.get("tool_calls") or message.get("role") == "tool"))


def store_end(run: Run, status: str, error: str) -> bool:
    """Store the end of a run, if its fence stands; False if it must be tried again."""
    # Whose task was cancelled may still be at it, on a thread.
    with run.storing:
        try:
            ended = _add_end(run, status, error)
        except MemoryUnavailable:
            logger.warning("turn %s: its end can't be stored yet", run.claim.client_id)
            return False
    if ended is None:
        logger.info("turn %s was ended by another", run.claim.client_id)
    run.is_followed = ended is not None and ended.waiting > 0
    return True


def _add_end(run: Run, status: str, error: str) -> Ended | None:
    """Needs `storing`."""
    # What may be stored already must not be stored again, and results must follow tool calls.
    if (run.last_id or needs_row(run.last)) and not _add_last(run):
        return None
    last = run.last if run.last is not None else _text_so_far(run)
    if status != COMPLETE:  # what was stopped waits for no answer
        last = {name: value for name, value in last.items() if name != "asks"}
    metadata = last.get("response_metadata")
    model = metadata.get("model_name") if isinstance(metadata, Mapping) else None
    usage = last.get("usage")
    ended = services.finish_turn(
        claim=run.claim,
        status=status,
        error=error,
        message=last,
        step=run.text.step,
        model=str(model or "")[:100],
        usage=usage if isinstance(usage, Mapping) else None,
        batch_id=run.end_id,
    )
    if ended is not None:
        _count_tokens(run, last)
    return ended


def _count_tokens(run: Run, message: Mapping[str, object]) -> None:
    """Count what the model used for this message: as it reports, else as the app counts."""
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


def _text_so_far(run: Run) -> Mapping[str, object]:
    repaired = {"repaired": ["content"]} if run.is_repaired else {}
    return {"role": "assistant", "content": run.text.text, **repaired}


def _lane(run: Run, *_: object) -> tuple[str, str]:
    return (run.claim.scope, run.claim.key)


aread_request = in_pool(read_request)
asave_text = in_pool(save_text, lane=_lane)
astore_last = in_pool(store_last, lane=_lane)
astore_end = in_pool(store_end, lane=_lane)
