"""The runner of a process: turns are run in an event loop of its own, under a lease.

A responder that blocks stops no socket: it shares its thread with other runs only. The keeper, on
another thread, renews leases and hears of stops, lost fences and timeouts; it ends a run from the
text so far without waiting for the responder.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError as FutureCancelled
from concurrent.futures import Future
from contextlib import aclosing
from typing import Any

from asgiref.sync import async_to_sync
from django.db import DatabaseError, InterfaceError, close_old_connections

from chatmemory import responders, services
from chatmemory.conf import settings
from chatmemory.errors import ChatMemoryError, MemoryUnavailable, ModelError, ModelTimeout
from chatmemory.hub import LiveText, hub
from chatmemory.logs import log_error, watch_loop
from chatmemory.responders import Finished, Progress, Request, Text
from chatmemory.runs import (
    COMPLETE,
    FAILED,
    INTERRUPTED,
    FenceLost,
    Run,
    aread_request,
    asave_text,
    astore_end,
    astore_last,
    needs_row,
    store_end,
)
from chatmemory.services import Claim
from chatmemory.services.claims import TURN_IDENTITY, claimed_turns
from chatmemory.services.fairness import asessions_to_claim, has_turn_limit
from chatmemory.services.faults import discard_connection_after
from chatmemory.services.rollback import require_shared_data
from chatmemory.threads import DaemonExecutor

logger = logging.getLogger(__name__)

KEEPER_SECONDS = 1.0
KEEPER_BATCH = 100
"""Turns that the keeper names in one statement; SQLite limits the depth of a condition."""
SLICE_SECONDS = 0.02
"""How long a responder that waits for nothing may go on before the others have their turn."""
RESPONDER_THREADS = min(32, (os.cpu_count() or 1) + 4)
"""On how many threads responders run what would block; as many as Python's own default."""
FINISH_AGAIN_SECONDS = 1.0
LOOK_SECONDS = 0.05
"""How often a process that ends looks whether its runs have."""
GIVE_BACK_SECONDS = 1.0
"""How long a process that ends tries to give back its claims."""
END_SECONDS = 3.0
"""How long it tries to store the ends of the runs that it interrupts."""


class Runner:
    """Claims turns and runs them. One for each process, whose leases bear its name."""

    def __init__(self) -> None:
        self.name = f"{socket.gethostname()[:24]}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._test_loop: asyncio.AbstractEventLoop | None = None
        """With `DB_THREADS` 0, the loop of a test's sockets, which sees the test's transaction."""
        self._keeper: threading.Thread | None = None
        self._is_over = False
        self._look = threading.Event()
        self._runs: dict[Claim, Run] = {}
        self._asked_at: float | None = None
        """When the loop was asked whether it is alive, if it has not answered."""
        self._is_enabled = False
        self._is_draining = False

    def enable(self) -> None:
        """From now on this process runs turns that wait."""
        if not settings.DB_THREADS:
            with contextlib.suppress(RuntimeError):  # called from a sync view
                self._test_loop = asyncio.get_running_loop()
        if not self._is_enabled:
            self._is_enabled = True
            hub.serve()

    @property
    def owner(self) -> str:
        """The name under which this process claims; empty where it can't run a turn now."""
        if not self._is_enabled or self._is_draining or self._is_stuck:
            return ""
        return self.name

    @property
    def _is_stuck(self) -> bool:
        """The loop has not answered for as long as a lease: a responder blocks it."""
        asked_at = self._asked_at
        return asked_at is not None and time.monotonic() - asked_at > settings.LEASE

    # Called from any thread.

    def launch(self, claim: Claim) -> None:
        """Run a claimed turn in the runner's loop, without waiting for it."""
        self._begin(self._run(claim))

    def consider(self, session_pk: int) -> None:
        """Claim and run what waits in this session, if this process runs turns."""
        if self.owner:
            self._begin(self._claim_and_run(session_pk))

    def pass_on(self, session_pk: int) -> None:
        """See that somebody runs what waits in this session: this process, or another."""
        if self.owner:
            self.consider(session_pk)
        else:
            hub.call_runners(session_pk)

    def stop(self, turn_pk: int) -> None:
        """Stop the turn, if it runs here."""
        for claim, run in tuple(self._runs.items()):
            if claim.turn_pk != turn_pk:
                continue
            if settings.DB_THREADS:
                self._look.set()  # the keeper knows whether it is the same turn
            elif run.loop is not None and run.take_end():  # there is no keeper
                run.cancel()
                asyncio.run_coroutine_threadsafe(self._finish(run, INTERRUPTED, ""), run.loop)

    def run(self, session_pk: int, *, timeout_seconds: float | None = None) -> bool:
        """Run the turn that waits in this session, and wait for its end.

        After `timeout_seconds` only the waiting ends, not the run. False, and nothing is done, if
        no turn waits, or another process has begun it, or this one is about to end or blocked by a
        responder.
        """
        running = self.begin(session_pk)
        if running is None:
            return False
        with contextlib.suppress(TimeoutError, FutureCancelled):
            running.result(timeout_seconds)
        return True

    def begin(self, session_pk: int) -> Future[None] | None:
        """Claim the turn that waits in this session and begin its run, which ends the future.

        None, and nothing is done, in the cases in which `run` returns False. With `DB_THREADS` 0
        the run has ended on return.
        """
        if self._is_draining or self._is_stuck:
            return None
        if settings.DB_THREADS:
            require_shared_data()
        claim = services.claim_next(session_pk=session_pk, owner=self.name)
        if claim is None:
            return None
        if not settings.DB_THREADS:
            async_to_sync(self._run)(claim)
            done: Future[None] = Future()
            done.set_result(None)
            return done
        # Not in the caller's loop: in a view of an ASGI server that is the server's own, and a
        # responder that blocks would stop its sockets.
        return asyncio.run_coroutine_threadsafe(_logged(self._run(claim)), self._running_loop())

    async def drain(self, seconds: float) -> bool:
        """Claim no more turns, let those that run end within `seconds`, and interrupt the rest.

        Claims of turns that have not started are given back. Returns whether all of this is stored:
        a database that hangs delays it by at most `GIVE_BACK_SECONDS` and `END_SECONDS`.
        """
        self._is_draining = True
        is_given_back = await self.give_back()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._runs:  # noqa: ASYNC110  # they end on other threads
                    await asyncio.sleep(LOOK_SECONDS)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                await self._interrupt_all()
        return is_given_back and not self._runs

    async def give_back(self) -> bool:
        """Let other processes run the turns claimed here that have not started.

        Returns False if the database did not do it within `GIVE_BACK_SECONDS`.
        """
        try:
            # Not wait_for: before Python 3.12 it swallows a cancellation that meets its result.
            async with asyncio.timeout(GIVE_BACK_SECONDS):
                await services.agive_back_claims(owner=self.name)
        except (MemoryUnavailable, TimeoutError):
            logger.warning("Claims could not be given back; their leases will expire.")
            return False
        return True

    def shut_down(self) -> None:
        """End the threads. Turns that run here are left to the sweeps of others: `drain` first.

        For tests, and processes that end in order.
        """
        with self._lock:
            loop, thread, keeper = self._loop, self._thread, self._keeper
            self._loop = self._thread = self._keeper = self._test_loop = None
            self._is_enabled, self._is_draining, self._is_over = False, False, True
        if loop is not None and thread is not None:
            asyncio.run_coroutine_threadsafe(_cancel_all(), loop)
            thread.join(timeout=5)
        if keeper is not None:
            self._look.set()
            keeper.join(timeout=5)
        self._runs.clear()
        self._asked_at = None
        self._is_over = False

    # The loop.

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(_logged(work), self._running_loop())
        self._ask()

    def _ask(self) -> None:
        """Ask the loop whether it is alive, if it has answered the last time."""
        loop = self._loop
        if loop is not None and self._asked_at is None:
            self._asked_at = time.monotonic()
            with contextlib.suppress(RuntimeError):  # it has ended
                loop.call_soon_threadsafe(self._answer)

    def _answer(self) -> None:
        self._asked_at = None

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if not settings.DB_THREADS and self._test_loop and self._test_loop.is_running():
                return self._test_loop
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                # A responder's `asyncio.to_thread`, and LangChain's sync tools and models.
                self._loop.set_default_executor(
                    DaemonExecutor(RESPONDER_THREADS, name="chatmemory-responders")
                )
                self._thread = threading.Thread(
                    target=self._run_for_ever,
                    args=(self._loop,),
                    name="chatmemory-runner",
                    daemon=True,
                )
                self._thread.start()
            return self._loop

    def _run_for_ever(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run the loop until `shut_down`, whatever a responder does to it."""
        watch_loop(loop, logger)
        while self._loop is loop:
            try:
                loop.run_forever()
            except BaseException as error:  # a task's SystemExit ends the loop, and all runs
                message = "a task of a responder ended the runner's loop, which continues"
                log_error(logger, message, error=error)
        loop.close()

    async def _claim_and_run(self, session_pk: int) -> None:
        claim = await self._claim(session_pk)
        if claim is not None:
            await self._run(claim)

    async def _claim(self, session_pk: int) -> Claim | None:
        owner = self.owner
        if not owner:
            return None
        try:
            return await services.aclaim_next(session_pk=session_pk, owner=owner)
        except ChatMemoryError as error:
            logger.warning("could not claim a turn: %s", error.code)
            return None

    async def _run(self, claim: Claim) -> None:
        if self._is_draining:
            await self.give_back()
            return
        if claim in self._runs:
            return  # it was launched before, and sent again before it could begin
        run = Run(claim, LiveText(claim.client_id, 0))
        run.loop, run.task = asyncio.get_running_loop(), asyncio.current_task()
        self._runs[claim] = run
        self._keep()
        try:
            with services.running(claim):
                await self._respond(run)
        except asyncio.CancelledError:
            if not run.is_ending:
                raise
        finally:
            hub.end_text(run.place, claim.client_id)
            if self._runs.get(claim) is run and not run.is_ending:
                del self._runs[claim]

    async def _respond(self, run: Run) -> None:
        """Begin, stream, end; whatever the responder does."""
        status, error = COMPLETE, ""
        try:
            if not await services.astart_turn(claim=run.claim):
                return
            run.is_started = True
            await self._stream(run, await aread_request(claim=run.claim))
        except FenceLost:
            return
        except MemoryUnavailable:
            if not run.is_started:
                return  # the sweep gives it back
            status = INTERRUPTED
        except TimeoutError:
            status, error = FAILED, ModelTimeout.code
        except ModelError as problem:
            status, error = FAILED, problem.code
            is_ours = type(problem).__module__ == ModelError.__module__
            level = logging.WARNING if is_ours else logging.ERROR
            message = "turn %s ends as %s"
            log_error(logger, message, run.claim.client_id, error, error=problem, level=level)
        except BaseException as problem:  # SystemExit, CancelledError too, if a responder raised it
            if run.is_ending or self._is_over or _is_thrown_away(run):
                raise
            status, error = FAILED, ModelError.code
            message = "turn %s: the responder failed"
            log_error(logger, message, run.claim.client_id, error=problem)
        if run.saving is not None:
            await asyncio.wait({run.saving})  # the end has to wait for it anyway
        if run.take_end():
            await self._finish(run, status, error)

    async def _finish(self, run: Run, status: str, error: str) -> None:
        """Store the end of a run, as soon as that can be; by whoever took the end."""
        try:
            while not await astore_end(run, status, error):  # noqa: ASYNC110  # no event tells
                await asyncio.sleep(FINISH_AGAIN_SECONDS)
        finally:
            self._ended(run)

    async def _interrupt_all(self) -> None:
        """End all runs with their text, and wait for those that end by themselves."""
        ends: set[asyncio.Future[None]] = set()
        while self._runs:
            for run in tuple(self._runs.values()):
                if run.is_started and run.take_end():
                    run.cancel()
                    ends.add(asyncio.ensure_future(self._finish(run, INTERRUPTED, "")))
            await asyncio.sleep(LOOK_SECONDS)

    async def _stream(self, run: Run, request: Request) -> None:
        run.window_tokens = request.window_tokens
        run.begin_step(0)
        gave_way = time.monotonic()
        async with aclosing(responders.find()(request)) as pieces:
            async for piece in pieces:
                match piece:
                    case Text(text):
                        if run.last is not None:
                            await self._store_held(run)
                        run.say(text)
                        self._save_soon(run)
                        if run.chars > settings.MAX_REPLY_CHARS:
                            return  # the rest would be cut, and may never end
                    case Progress():
                        run.tell(piece)
                    case Finished(message):
                        await self._hold_back(run, message)
                if run.is_lost:
                    raise FenceLost
                if time.monotonic() - gave_way >= SLICE_SECONDS:
                    await asyncio.sleep(0)
                    gave_way = time.monotonic()

    def _save_soon(self, run: Run) -> None:
        """Save the text so far, if that is due and no save is under way; nobody waits for it."""
        if run.is_save_due and (run.saving is None or run.saving.done()):
            run.saved_at, run.saved_chars = time.monotonic(), run.chars
            run.saving = asyncio.ensure_future(self._save(run))

    async def _save(self, run: Run) -> None:
        try:
            run.is_lost = not await asave_text(run)
        except ChatMemoryError as error:
            logger.warning(
                "turn %s: its text can't be saved now: %s", run.claim.client_id, error.code
            )

    async def _hold_back(self, run: Run, message: Mapping[str, object]) -> None:
        """Store the finished message before this one, and begin a step for the next."""
        if run.last is not None:
            await self._store_held(run)
        run.last = message
        if needs_row(message):
            await self._store_held(run)

    async def _store_held(self, run: Run) -> None:
        if not await astore_last(run):
            raise FenceLost

    def _ended(self, run: Run) -> None:
        self._runs.pop(run.claim, None)
        hub.end_text(run.place, run.claim.client_id)
        if run.is_followed:
            self.pass_on(run.claim.session_pk)
        if settings.DB_THREADS and self._loop is not None and has_turn_limit(run.claim.scope):
            self._begin(self._pass_on_others(run.claim.scope))

    async def _pass_on_others(self, scope: str) -> None:
        """Begin what a person's other sessions have waiting for the end of a turn."""
        try:
            sessions = await asessions_to_claim(scope=scope)
        except ChatMemoryError as error:
            logger.warning("the sweep claims a person's next turn: %s", error.code)
            return
        for session_pk in sessions:
            if not self.owner:
                hub.call_runners(session_pk)
            elif claim := await self._claim(session_pk):  # one by one: the oldest goes first
                self.launch(claim)

    # The keeper.

    def _keep(self) -> None:
        """See that the keeper runs. With `DB_THREADS` 0 there is one thread, and so none."""
        with self._lock:
            if settings.DB_THREADS and (self._keeper is None or not self._keeper.is_alive()):
                self._keeper = threading.Thread(
                    target=self._keep_for_ever, name="chatmemory-keeper", daemon=True
                )
                self._keeper.start()
        self._look.set()

    def _keep_for_ever(self) -> None:
        while not self._is_over:
            self._look.wait(min(KEEPER_SECONDS, settings.LEASE / 3) if self._runs else None)
            self._look.clear()
            self._ask()
            try:
                self._supervise(list(self._runs.values()))
            except (DatabaseError, InterfaceError) as error:
                logger.warning("the keeper can't reach the database: %s", type(error).__name__)
                discard_connection_after(error)
            except Exception as error:
                message = "the keeper failed; it runs again in %s s"
                log_error(logger, message, KEEPER_SECONDS, error=error)
            finally:
                close_old_connections()

    def _supervise(self, runs: list[Run]) -> None:
        started = [run for run in runs if run.is_started]
        for first in range(0, len(started), KEEPER_BATCH):
            self._supervise_batch(started[first : first + KEEPER_BATCH])

    def _supervise_batch(self, runs: Sequence[Run]) -> None:
        claims = [run.claim for run in runs]
        services.renew_leases(claims=claims)
        turns = claimed_turns(claims)
        found = {
            tuple(identity): stop_requested_at is not None
            for *identity, stop_requested_at in turns.values_list(
                *TURN_IDENTITY, "stop_requested_at"
            )
        }
        for run in runs:
            if (is_stopped := found.get(run.claim.turn_identity)) is None:
                self._drop(run)
            elif is_stopped:
                self._end(run, INTERRUPTED, "")
            elif time.monotonic() - run.began > settings.TURN_TIMEOUT:
                self._end(run, FAILED, ModelTimeout.code)

    def _drop(self, run: Run) -> None:
        """Another ended this turn: nothing of it can be stored any more."""
        if run.take_end():
            run.cancel()
            self._ended(run)

    def _end(self, run: Run, status: str, error: str) -> None:
        """End a run from its own text, without waiting for its task."""
        if run.take_end():
            run.cancel()
            threading.Thread(target=self._end_here, args=(run, status, error), daemon=True).start()

    def _end_here(self, run: Run, status: str, error: str) -> None:
        try:
            while not store_end(run, status, error):
                time.sleep(FINISH_AGAIN_SECONDS)
        except Exception as problem:
            message = "the end of turn %s is not stored; a sweep will end it"
            log_error(logger, message, run.claim.client_id, error=problem)
        finally:
            close_old_connections()
            self._ended(run)


def _is_thrown_away(run: Run) -> bool:
    """Whether the run's coroutine is closed from outside, so that nothing may be awaited in it."""
    try:
        return asyncio.current_task() is not run.task
    except RuntimeError:  # no loop runs here
        return True


async def _logged(work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except Exception as error:
        log_error(logger, "a run failed; a sweep will end its turn", error=error)


async def _cancel_all() -> None:
    """End this loop and all that it does."""
    loop = asyncio.get_running_loop()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.wait(others, timeout=1) if others else None
    loop.stop()


runner = Runner()
"""This process's."""
