"""Faults that are patched into a server's process: kill points, losses, a missing fence.

Each is inactive until a file for it exists in the folder `TORTURE`.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from chatmemory.codec import text_of
from chatmemory.database.turn_writes import TurnInsert, TurnUpdate
from chatmemory.live.hub import hub
from chatmemory.live.keeper import Keeper
from chatmemory.models import Change
from chatmemory.services.turns.run_context import _run_of
from tests.programs.torture import steps

SHARE_LOST = 0.5
STALLS, STALLED, CALLS = "stalls", "stalled", "calls"
"""The folder of the stalls, the file that reports one, and the prefix of the files of calls."""

Wrapper = Callable[[Callable[..., Any]], Callable[..., Any]]


def patch_everywhere(name: str, wrapper: Wrapper) -> None:
    """Wrap the function of this name in all modules of the app that have it."""
    modules = [module for path, module in sys.modules.items() if path.startswith("chatmemory")]
    holders = [module for module in modules if callable(vars(module).get(name))]
    assert holders, f"chatmemory has no {name}"
    assert len({vars(holder)[name] for holder in holders}) == 1, f"several functions named {name}"
    wrapped = wrapper(vars(holders[0])[name])
    for module in holders:
        setattr(module, name, wrapped)


def plant_kill_points() -> None:
    """Patch the steps that are calls; the other steps are in the responder and in `served`."""
    finished = threading.local()

    def storing(store: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*given: Any, turn_write: object = None, **named: Any) -> Any:
            if isinstance(turn_write, TurnInsert):
                steps.reach("before_commit")
            is_end = isinstance(turn_write, TurnUpdate)
            if is_end:
                steps.reach("before_finish")
            stored = store(*given, turn_write=turn_write, **named)
            finished.is_next = is_end and stored is not None
            return stored

        return wrapper

    def starting(start: Callable[..., Awaitable[bool]]) -> Callable[..., Awaitable[bool]]:
        async def wrapper(**given: Any) -> bool:
            steps.reach("before_start")
            return await start(**given)

        return wrapper

    poke = hub.notify

    def poking(session_pk: int, change: Change | None = None, *, is_local: bool = False) -> None:
        if getattr(finished, "is_next", False):  # this thread has just committed the end of a turn
            finished.is_next = False
            steps.reach("before_poke")
        poke(session_pk, change, is_local=is_local)

    patch_everywhere("store_rows", storing)
    patch_everywhere("astart_turn", starting)
    hub.notify = poking  # type: ignore[method-assign]  # patched on purpose


def plant_losses() -> None:
    """While the file `lose` exists, lose half of all notifications and pieces of text.

    Both those of this process and those from other processes. Each loss writes a byte to a file.
    """
    place = steps.folder()
    assert place is not None
    chance = random.Random(os.environ.get("TORTURE_SEED", ""))  # noqa: S311  # no secret
    notify, notify_text, on_event = hub.notify, hub._sockets.notify_text, hub._layer._on_event

    def is_lost() -> bool:
        if not (place / "lose").exists() or chance.random() >= SHARE_LOST:
            return False
        with (place / f"lost.{os.getpid()}").open("a") as file:
            file.write(".")
        return True

    def unless_lost(
        call: Callable[..., None], session_pk: int, *change: Change | None, **options: bool
    ) -> None:
        if not is_lost():
            call(session_pk, *change, **options)

    def receiving(kind: str, event: Mapping[str, Any]) -> None:
        if kind not in ("news", "text") or not is_lost():
            on_event(kind, event)

    hub.notify = partial(unless_lost, notify)  # type: ignore[method-assign]
    hub._sockets.notify_text = partial(unless_lost, notify_text)  # type: ignore[method-assign]
    hub._layer._on_event = receiving


def plant_fence_gap() -> None:
    """While the file `unfenced` exists, let a run continue to write after a takeover."""
    place = steps.folder()
    assert place is not None
    file = place / "unfenced"
    drop: Callable[[Keeper, Any], None] = Keeper._drop

    def without(condition: Callable[..., dict[str, object]]) -> Callable[..., dict[str, object]]:
        return lambda claim: {} if file.exists() else condition(claim)

    def saving(save: Callable[..., bool]) -> Callable[..., bool]:
        return lambda **given: save(**given) or file.exists()

    def dropping(keeper: Keeper, run: Any) -> None:
        if not file.exists():
            drop(keeper, run)

    patch_everywhere("_fence_conditions", without)
    patch_everywhere("save_partial", saving)
    Keeper._drop = dropping  # type: ignore[assignment, method-assign]


def plant_stalls() -> None:
    """Stop this process before a statement of a run, whose number is a file name in `stalls`.

    The statements of each run are numbered from 1. The file is renamed to `stalled`.
    """
    place = steps.folder()
    assert place is not None
    runs: dict[int, object] = {}  # keeps the runs alive, so that ids are not reused
    reached: Counter[int] = Counter()

    def stall(execute: Callable[..., Any], *statement: Any) -> Any:
        run = _run_of.get()
        if run is not None:
            runs[id(run)] = run
            reached[id(run)] += 1
            with contextlib.suppress(FileNotFoundError):
                (place / STALLS / str(reached[id(run)])).rename(place / STALLED)
                os.kill(os.getpid(), signal.SIGSTOP)
        return execute(*statement)

    def plant(connection: BaseDatabaseWrapper, **_: object) -> None:
        if stall not in connection.execute_wrappers:
            connection.execute_wrappers.append(stall)

    connection_created.connect(plant, weak=False)


def plant_record_of_model_calls() -> None:
    """Write the turn and the last message of each model call to a file of this process."""
    place = steps.folder()
    assert place is not None

    def reading(read: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def wrapper(**given: Any) -> Any:
            request = await read(**given)
            if request is None:  # the fence is lost, so the model is not called
                return None
            call = {"turn": request.turn, "text": text_of(request.messages[-1]["content"])}
            with (place / f"{CALLS}.{os.getpid()}").open("a") as file:
                file.write(json.dumps(call) + "\n")
            return request

        return wrapper

    patch_everywhere("aread_request", reading)
