"""What is put into a server's process from outside: kill points, losses, a fence taken away.

All is there from the start, and asleep until a file in the folder `TORTURE` wakes it.
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
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from chatmemory.codec import text_of
from chatmemory.hub import hub
from chatmemory.runner import Runner
from chatmemory.services.alongside import EndedTurn, NewTurn
from chatmemory.services.runs import _run_of
from tests.torture import steps

SHARE_LOST = 0.5
STALLS, STALLED, CALLS = "stalls", "stalled", "calls"
"""The folder of the stalls, the file that reports one, and the prefix of the files of calls."""

Wrapper = Callable[[Callable[..., Any]], Callable[..., Any]]


def put_everywhere(name: str, wrapper: Wrapper) -> None:
    """Wrap the function of this name, wherever in the app it is known by it."""
    modules = [module for path, module in sys.modules.items() if path.startswith("chatmemory")]
    holders = [module for module in modules if callable(vars(module).get(name))]
    assert holders, f"chatmemory has no {name} any more"
    assert len({vars(holder)[name] for holder in holders}) == 1, f"there are several {name}"
    wrapped = wrapper(vars(holders[0])[name])
    for module in holders:
        setattr(module, name, wrapped)


def plant_kill_points() -> None:
    """The steps that are calls; the others are in the responder and in the ASGI application."""
    finished = threading.local()

    def storing(store: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*given: Any, turn_write: object = None, **named: Any) -> Any:
            if isinstance(turn_write, NewTurn):
                steps.reach("before_commit")
            is_end = isinstance(turn_write, EndedTurn)
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

    poke = hub.poke

    def poking(session_pk: int) -> None:
        if getattr(finished, "is_next", False):  # what this thread committed last
            finished.is_next = False
            steps.reach("before_poke")
        poke(session_pk)

    put_everywhere("store", storing)
    put_everywhere("astart_turn", starting)
    hub.poke = poking  # type: ignore[method-assign]  # that is the point


def plant_losses() -> None:
    """While there is a file `lose`, half of all pokes and pieces of text get lost, here and on the
    way from other processes. Each leaves a byte in a file of this process."""
    place = steps.folder()
    assert place is not None
    chance = random.Random(os.environ.get("TORTURE_SEED", ""))  # noqa: S311  # no secret
    poke, say, hear = hub.poke, hub._say, hub._layer._hear

    def is_lost() -> bool:
        if not (place / "lose").exists() or chance.random() >= SHARE_LOST:
            return False
        with (place / f"lost.{os.getpid()}").open("a") as file:
            file.write(".")
        return True

    def lossy(session_pk: int, through: Callable[[int], None]) -> None:
        if not is_lost():
            through(session_pk)

    def hearing(kind: str, event: Mapping[str, Any]) -> None:
        if kind not in ("news", "text") or not is_lost():
            hear(kind, event)

    hub.poke = lambda session_pk: lossy(session_pk, poke)  # type: ignore[method-assign]
    hub._say = lambda session_pk: lossy(session_pk, say)  # type: ignore[method-assign]
    hub._layer._hear = hearing


def plant_a_gap_in_the_fence() -> None:
    """While there is a file `unfenced`, a run that was taken over may go on and write."""
    place = steps.folder()
    assert place is not None
    file = place / "unfenced"
    drop: Callable[[Runner, Any], None] = Runner._drop

    def standing(condition: Callable[..., dict[str, object]]) -> Callable[..., dict[str, object]]:
        return lambda claim: {} if file.exists() else condition(claim)

    def saving(save: Callable[..., bool]) -> Callable[..., bool]:
        return lambda **given: save(**given) or file.exists()

    def dropping(runner: Runner, run: Any) -> None:
        if not file.exists():
            drop(runner, run)

    put_everywhere("_standing", standing)
    put_everywhere("save_partial", saving)
    Runner._drop = dropping  # type: ignore[assignment, method-assign]


def plant_stalls() -> None:
    """Stop this process before the statement of a run that a file in `stalls` names by its number.

    The statements of each run are counted from 1. The file moves to `stalled`.
    """
    place = steps.folder()
    assert place is not None
    runs: dict[int, object] = {}  # kept, so that no later run has the id of one
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


def plant_a_record_of_model_calls() -> None:
    """Write the turn and the last message of each request down, in a file of this process."""
    place = steps.folder()
    assert place is not None

    def reading(read: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def wrapper(**given: Any) -> Any:
            request = await read(**given)
            call = {"turn": request.turn, "text": text_of(request.messages[-1]["content"])}
            with (place / f"{CALLS}.{os.getpid()}").open("a") as file:
                file.write(json.dumps(call) + "\n")
            return request

        return wrapper

    put_everywhere("aread_request", reading)
