"""The runner of a process: it runs turns under a lease, in its own thread and event loop.

A responder that blocks delays other runs, but never a socket. The keeper, in another thread,
renews leases and finds stops, lost fences and timeouts. It ends a run with the partial text and
does not wait for the responder.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
import uuid
from collections.abc import Coroutine, Mapping
from concurrent.futures import CancelledError as FutureCancelled
from concurrent.futures import Future
from contextlib import aclosing
from functools import partial
from typing import Any

from asgiref.sync import async_to_sync
from django.conf import settings as django_settings

from chatmemory import codec, responders
from chatmemory.conf import settings
from chatmemory.database.after_commit import aannounce_failure
from chatmemory.database.host_code import HOST_THREADS, HostExecutor, fresh_connections
from chatmemory.database.host_tests import require_shared_data
from chatmemory.database.pool import threads
from chatmemory.errors import (
    BadInput,
    ChatMemoryError,
    InstructionsFailed,
    MemoryUnavailable,
    ModelAccessDenied,
    ModelError,
    ModelNotFound,
    ModelTimeout,
)
from chatmemory.live.hub import hub
from chatmemory.live.instructions import with_instructions
from chatmemory.live.jobs import JobExecutor
from chatmemory.live.keeper import Keeper
from chatmemory.live.loops import LoopThread
from chatmemory.live.run import (
    COMPLETE,
    FAILED,
    INTERRUPTED,
    Run,
    aread_request,
    asave_text,
    astore_end_durably,
    astore_last,
    needs_row,
)
from chatmemory.live.texts import LiveText
from chatmemory.live.titles import give_title
from chatmemory.logs import log_error, text_of
from chatmemory.models import Message
from chatmemory.responders import Finished, Progress, Request, Responder, Text
from chatmemory.responders.failures import code_of, kind_of
from chatmemory.services.derived.writing import seen_of
from chatmemory.services.turns import progress, recovery
from chatmemory.services.turns.claims import Claim, aclaim_next, claim_next
from chatmemory.services.turns.fairness import asessions_to_claim, has_turn_limit
from chatmemory.services.turns.run_context import run_context
from chatmemory.startup import are_threads_patched

logger = logging.getLogger(__name__)

SLICE_SECONDS = 0.02
"""How long a responder that never waits may run before the loop runs other tasks."""
FOR_STAFF = (InstructionsFailed, ModelAccessDenied, ModelNotFound)
"""Failures whose cause staff see in their own sessions, as that of each `responder_error`."""
MAX_ERROR_CHARS = 1_000
"""Maximum length of the text of a responder's error."""
POLL_SECONDS = 0.05
"""How often the drain checks whether runs have ended."""


class _FenceLost(Exception):
    """Another process ended this turn. See Note [Fence]."""


class _Unstorable(Exception):
    """The database cannot store a finished message. Its text is the error code."""


class Runner:
    """Claims turns and runs them. Each process has one; its name is in the leases."""

    release_seconds = 1.0
    """How long the drain waits for the database to release claims."""
    end_seconds = 3.0
    """How long the drain waits for the database to store the ends of interrupted runs."""

    def __init__(self) -> None:
        self.rename()
        # The executor is for `asyncio.to_thread` in responders, and for LangChain's sync tools.
        self._thread = LoopThread(
            "chatmemory-runner",
            executor=partial(HostExecutor, HOST_THREADS, name="chatmemory-responders"),
        )
        self._is_shutting_down = False
        self._runs: dict[Claim, Run] = {}
        self.keeper = Keeper(self._runs, probe_loop=self._probe_loop, on_end=self._on_end)
        self.jobs = JobExecutor(lambda: self.name)
        self._probed_at: float | None = None
        """When the unanswered probe of the loop was sent; None if the loop has answered."""
        self._is_enabled = False
        self._is_draining = False

    def rename(self) -> None:
        """Get another name for the leases: a forked process must not use its parent's."""
        self.name = f"{socket.gethostname()[:24]}:{os.getpid()}:{uuid.uuid4().hex[:8]}"

    def enable(self) -> None:
        """Let this process run waiting turns, unless its threads are patched."""
        if are_threads_patched():
            return
        threads().use_current_loop()
        if not self._is_enabled:
            self._is_enabled = True
            hub.serve()

    @property
    def owner(self) -> str:
        """The lease owner for claims of this process; empty while it cannot run a turn."""
        if not self._is_enabled or self._is_draining or self._is_stuck:
            return ""
        return self.name

    @property
    def _is_stuck(self) -> bool:
        """Whether a responder has blocked the loop for longer than a lease."""
        probed_at = self._probed_at
        return probed_at is not None and time.monotonic() - probed_at > settings.LEASE

    # Any thread may call the methods below.

    def launch(self, claim: Claim) -> None:
        """Run a claimed turn in the runner's loop, without waiting for it."""
        self._submit_and_probe(self._run_turn(claim, was_waiting=False))

    def run_waiting(self, session_pk: int) -> None:
        """Claim and run the session's next turn, if this process runs turns."""
        if self.owner:
            self._submit_and_probe(self._claim_and_run(session_pk))

    def run_jobs(self) -> None:
        """Execute the jobs that wait, in a thread of their own."""
        if not self._is_draining:
            threads().in_background(self.jobs.wake)

    def dispatch(self, session_pk: int) -> None:
        """Run the session's next turn here, or notify the runners of other processes."""
        if self.owner:
            self.run_waiting(session_pk)
        else:
            hub.notify_runners(session_pk)

    def stop(self, turn_pk: int) -> None:
        """Stop the turn, if it runs here."""
        for claim, run in tuple(self._runs.items()):  # a copy: other threads change the dict
            if claim.turn_pk == turn_pk:
                # Not run.cancel(): after a restore another turn can have this primary key. The
                # keeper compares the whole identity of the turn.
                threads().elsewhere(
                    self.keeper.check_now, inline=partial(self._stop_without_keeper, run)
                )

    def _stop_without_keeper(self, run: Run) -> None:
        if run.loop is not None and run.claim_end():
            run.cancel()
            asyncio.run_coroutine_threadsafe(self._finish_run(run, INTERRUPTED, ""), run.loop)

    def run(self, session_pk: int, *, timeout_seconds: float | None = None) -> bool:
        """Run the session's waiting turn, and wait at most `timeout_seconds` for its end.

        The run continues after a timeout. Returns False without doing anything if no turn waits,
        another process claimed it, or this process is ending, blocked by a responder, or has
        patched threads.
        """
        running = self.begin(session_pk)
        if running is None:
            return False
        with contextlib.suppress(TimeoutError, FutureCancelled):
            running.result(timeout_seconds)
        return True

    def begin(self, session_pk: int) -> Future[None] | None:
        """Claim the session's waiting turn and start its run; return a future for its end.

        Returns None where `run` returns False. With `DB_THREADS` 0 the run has ended on return.
        """
        if self._is_draining or self._is_stuck or are_threads_patched():
            return None
        return threads().elsewhere(
            partial(self._begin_in_loop, session_pk), inline=partial(self._run_inline, session_pk)
        )

    def _begin_in_loop(self, session_pk: int) -> Future[None] | None:
        require_shared_data()
        claim = claim_next(session_pk=session_pk, owner=self.name)
        # Not in the caller's loop: in a view of an ASGI server that is the server's own, and a
        # responder that blocks would stop its sockets.
        return self._submit(_log_errors(self._run_turn(claim))) if claim is not None else None

    def _run_inline(self, session_pk: int) -> Future[None] | None:
        claim = claim_next(session_pk=session_pk, owner=self.name)
        if claim is None:
            return None
        async_to_sync(self._run_turn)(claim)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    async def drain(self, seconds: float) -> bool:
        """Stop claiming turns, wait `seconds` for running turns, and interrupt the rest.

        Releases the claims of turns that have not started. Returns whether all of this is stored: a
        database that hangs delays it by at most `release_seconds` and `end_seconds`.
        """
        self._is_draining = True
        jobs_end = asyncio.ensure_future(asyncio.to_thread(self.jobs.stop))
        is_released = await self.release_claims()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._runs:  # noqa: ASYNC110  # they end on other threads
                    await asyncio.sleep(POLL_SECONDS)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.end_seconds):
                await self._interrupt_all()
        await jobs_end
        return is_released and not self._runs

    async def release_claims(self) -> bool:
        """Return this process's unstarted turns to the queue, for other processes.

        Returns False if the database did not do it within `release_seconds`.
        """
        try:
            # Note [Timeouts]
            async with asyncio.timeout(self.release_seconds):
                await recovery.arequeue_unstarted_turns(owner=self.name)
        except (MemoryUnavailable, TimeoutError):
            logger.warning("Unstarted claims could not be released; their leases will expire.")
            return False
        return True

    def shut_down(self) -> None:
        """End the threads. Call `drain` first; otherwise other processes end the turns later."""
        self._is_enabled, self._is_draining, self._is_shutting_down = False, False, True
        self._thread.stop()
        self.keeper.stop()
        self.jobs.stop()
        self._runs.clear()
        self._probed_at = None
        self._is_shutting_down = False

    def _submit_and_probe(self, work: Coroutine[Any, Any, None]) -> None:
        self._submit(_log_errors(work))
        self._probe_loop()

    def _submit(self, work: Coroutine[Any, Any, None]) -> Future[None]:
        return threads().submit(work, self._thread.submit)

    def _probe_loop(self) -> None:
        """Send the loop a callback, unless an earlier one is unanswered. See `_is_stuck`."""
        if self._thread.is_started and self._probed_at is None:
            self._probed_at = time.monotonic()
            self._thread.call_if_started(self._on_probe_answered)

    def _on_probe_answered(self) -> None:
        self._probed_at = None

    async def _claim_and_run(self, session_pk: int) -> None:
        claim = await self._claim_session(session_pk)
        if claim is not None:
            await self._run_turn(claim)

    async def _claim_session(self, session_pk: int) -> Claim | None:
        owner = self.owner
        if not owner:
            return None
        try:
            return await aclaim_next(session_pk=session_pk, owner=owner)
        except ChatMemoryError as error:
            logger.warning("a turn cannot be claimed now: %s", error.code)
            return None

    async def _run_turn(self, claim: Claim, *, was_waiting: bool = True) -> None:
        # The drain released all unstarted claims when it began, but this one arrived later.
        if self._is_draining:
            await self.release_claims()
            return
        if claim in self._runs:
            return  # a repeated send launched the same claim again
        run = Run(claim, LiveText(claim.client_id, 0))
        run.loop, run.task = asyncio.get_running_loop(), asyncio.current_task()
        self._runs[claim] = run
        threads().in_background(self.keeper.wake)
        try:
            with run_context(claim, run.left):
                await self._respond(run, was_waiting)
        except asyncio.CancelledError:
            if not run.is_ending:
                raise
        finally:
            hub.end_text(run.ref, claim.client_id)
            if self._runs.get(claim) is run and not run.is_ending:
                del self._runs[claim]

    async def _respond(self, run: Run, was_waiting: bool) -> None:
        """Run the responder and store the end of the turn, also if the responder fails."""
        status, error = COMPLETE, ""
        request: Request | None = None
        try:
            if not await progress.astart_turn(claim=run.claim):
                return
            run.is_started = True
            run.begin_step(0)  # before the announcement: other processes then request the text
            hub.announce_run(run.ref, was_waiting=was_waiting)
            request = await aread_request(claim=run.claim, left=run.left)
            if request is None:
                return
            run.seen = seen_of(request.session)
            async with fresh_connections():
                await self._stream(run, await with_instructions(request))
        except _FenceLost:
            return
        except MemoryUnavailable:
            if not run.is_started:
                return  # a sweep requeues the turn when its lease has expired
            status = INTERRUPTED
        except _Unstorable as problem:
            status, error = FAILED, str(problem)
        except TimeoutError:
            status, error = FAILED, ModelTimeout.code
        except ModelError as problem:
            status, error = FAILED, problem.code
            is_of_host = isinstance(problem, InstructionsFailed)
            is_ours = type(problem).__module__ == ModelError.__module__ and not is_of_host
            level = logging.WARNING if is_ours else logging.ERROR
            message = "turn %s ends as %s"
            log_error(logger, message, run.claim.client_id, error, error=problem, level=level)
            if isinstance(problem, FOR_STAFF) and problem.__cause__ is not None:
                _explain(run, request, problem.__cause__)
            await aannounce_failure(run.claim.session_pk, run.claim.client_id, problem)
        except BaseException as problem:
            # A responder may raise SystemExit or CancelledError itself.
            if run.is_ending or self._is_shutting_down or _is_closed_from_outside(run):
                raise
            status, error = FAILED, code_of(problem)
            message = "turn %s: the responder failed"
            log_error(logger, message, run.claim.client_id, error=problem)
            _explain(run, request, problem)
            await aannounce_failure(run.claim.session_pk, run.claim.client_id, problem)
        if run.save_task is not None:
            # The end would wait for the save's lane (Note [Lanes]). Until this task claims the end,
            # the keeper can still end the run.
            await asyncio.wait({run.save_task})
        if run.claim_end():
            await self._finish_run(run, status, error)

    async def _finish_run(self, run: Run, status: str, error: str) -> None:
        """Store the end of a run. The caller has claimed it with `claim_end`."""
        try:
            await astore_end_durably(run, status, error)
        finally:
            self._on_end(run)

    async def _interrupt_all(self) -> None:
        """Interrupt all runs with their partial text, and wait until all ends are stored."""
        ends: set[asyncio.Future[None]] = set()  # references: a loop keeps only weak ones
        # Repeated: a run that starts during the loop must be interrupted too.
        while self._runs:
            for run in tuple(self._runs.values()):
                if run.is_started and run.claim_end():
                    run.cancel()
                    ends.add(asyncio.ensure_future(self._finish_run(run, INTERRUPTED, "")))
            await asyncio.sleep(POLL_SECONDS)

    async def _stream(self, run: Run, request: Request) -> None:
        run.window_tokens = request.window_tokens
        yielded_at = time.monotonic()
        # Without aclosing Python would close the generator later, in another task.
        async with aclosing(_find_responder()(request)) as pieces:
            async for piece in pieces:
                match piece:
                    case Text(text):
                        if run.last is not None:
                            await self._store_last(run)
                        run.add_text(text)
                        self._save_soon(run)
                        if run.chars > settings.MAX_REPLY_CHARS:
                            return  # the rest would be truncated, and may never end
                    case Progress():
                        run.add_progress(piece)
                    case Finished(message):
                        await self._set_last(run, message)
                if run.is_fence_lost:
                    raise _FenceLost
                # A model that never waits, for example one with a cache, would block other runs.
                if time.monotonic() - yielded_at >= SLICE_SECONDS:
                    await asyncio.sleep(0)
                    yielded_at = time.monotonic()

    def _save_soon(self, run: Run) -> None:
        """Start to save the partial text in the background if a save is due and none runs."""
        if run.is_save_due and (run.save_task is None or run.save_task.done()):
            run.saved_at, run.saved_chars = time.monotonic(), run.chars
            run.save_task = asyncio.ensure_future(self._save_text(run))

    async def _save_text(self, run: Run) -> None:
        try:
            run.is_fence_lost = not await asave_text(run)
        except ChatMemoryError as error:
            logger.warning(
                "turn %s: the partial text cannot be saved: %s", run.claim.client_id, error.code
            )

    async def _set_last(self, run: Run, message: Mapping[str, object]) -> None:
        """Keep the finished message for the end of the turn; store the previous one now."""
        if run.last is not None:
            await self._store_last(run)
        run.last = message
        if message.get("role") == Message.Role.ASSISTANT and codec.text_of(message.get("content")):
            run.note_text()  # the first text, if the responder streams none
        if needs_row(message):
            await self._store_last(run)

    async def _store_last(self, run: Run) -> None:
        try:
            is_stored = await astore_last(run)
        except BadInput as problem:  # a database with another character set
            raise _Unstorable(problem.code) from problem
        if not is_stored:
            raise _FenceLost

    def _on_end(self, run: Run) -> None:
        self._runs.pop(run.claim, None)
        hub.end_text(run.ref, run.claim.client_id)
        if run.has_next_turn:
            self.dispatch(run.claim.session_pk)
        threads().in_background(partial(self._launch_waiting, run.claim.scope))
        if run.is_complete and settings.TITLE is not None:
            self._give_title(run.claim)

    def _give_title(self, claim: Claim) -> None:
        # A drain does not wait for it: the session's next turn tries again, in another process.
        if threads().has_loop and not self._is_draining:
            self._submit(_log_errors(give_title(claim)))

    def _launch_waiting(self, scope: str) -> None:
        if self._thread.is_started and has_turn_limit(scope):
            self._submit_and_probe(self._claim_and_launch(scope))

    async def _claim_and_launch(self, scope: str) -> None:
        """Launch turns of the user's other sessions that waited for TURNS_PER_USER."""
        try:
            sessions = await asessions_to_claim(scope=scope)
        except ChatMemoryError as error:
            message = "the next turn of a user cannot be claimed; a sweep will retry: %s"
            logger.warning(message, error.code)
            return
        for session_pk in sessions:
            # Checked for each session: a drain may begin in between.
            if not self.owner:
                hub.notify_runners(session_pk)
            # Not gathered: the oldest session must be claimed first.
            elif claim := await self._claim_session(session_pk):
                self._submit_and_probe(self._run_turn(claim))


def _explain(run: Run, request: Request | None, error: BaseException) -> None:
    """Show the text of an error to developers: it may contain messages and keys."""
    text = f"{type(error).__name__}: {text_of(error)}"[:MAX_ERROR_CHARS].replace("`", "'")
    if django_settings.DEBUG:
        logger.error("turn %s: %s", run.claim.client_id, text)
    owner = request.session.owner if request is not None else None
    if getattr(owner, "is_staff", False) and run.last is None:
        run.add_text(f"\n\n```text\n{text}\n```\n" if run.chars else f"```text\n{text}\n```\n")


def _find_responder() -> Responder:
    """Return the responder. Raises our error if its creation shows what is wrong with the model."""
    try:
        return responders.find()
    except Exception as error:
        if (kind := kind_of(error)) is not None:
            raise kind from error
        raise


def _is_closed_from_outside(run: Run) -> bool:
    """Whether Python closes the coroutine outside its task, where it cannot await."""
    try:
        return asyncio.current_task() is not run.task
    except RuntimeError:  # no loop runs here
        return True


async def _log_errors(work: Coroutine[Any, Any, None]) -> None:
    """Await a coroutine whose result no caller reads."""
    try:
        await work
    except Exception as error:
        log_error(logger, "a run failed; a sweep will end its turn", error=error)


runner = Runner()
"""The runner of this process."""
