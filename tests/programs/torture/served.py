"""The project's application with planted faults."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from project.asgi import application as project  # sets Django up

# isort: split

from tests.limits import apply_limits
from tests.programs.torture import planted, steps

apply_limits()
planted.plant_kill_points()
planted.plant_losses()
planted.plant_fence_gap()
planted.plant_stalls()
planted.plant_record_of_model_calls()


async def application(
    scope: Any, receive: Any, send: Callable[[Mapping[str, Any]], Awaitable[None]]
) -> None:
    """Serve the project; the last two steps of a turn are outgoing frames."""

    async def send_after_step(event: Mapping[str, Any]) -> None:
        frame = str(event.get("text") or "")
        if frame.startswith('{"type":"ok"') and '"duplicate":false' in frame:
            steps.reach("before_ack")
        if frame.startswith('{"type":"message"') and '"role":"assistant"' in frame:
            steps.reach("before_shown")
        await send(event)

    await project(scope, receive, send_after_step if scope["type"] == "websocket" else send)
