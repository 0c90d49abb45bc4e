"""The system prompt of a turn, which the settings give to sessions without instructions."""

from __future__ import annotations

from dataclasses import replace

from chatmemory.conf import settings
from chatmemory.database.host_code import call_host
from chatmemory.errors import InstructionsFailed
from chatmemory.models import Session
from chatmemory.responders import Request
from chatmemory.window import arranged


async def with_instructions(request: Request) -> Request:
    """Return the request with the result of INSTRUCTIONS_FOR, else INSTRUCTIONS, as first message.

    Unchanged if the session has instructions of its own. Call it in a block of
    `fresh_connections`. Raises InstructionsFailed.
    """
    if request.session.instructions:
        return request
    text = await _instructions_for(request.session) or settings.INSTRUCTIONS
    if not text:
        return request
    prompt: dict[str, object] = {"role": "system", "content": text}
    return replace(request, messages=arranged([prompt, *request.messages]))


async def _instructions_for(session: Session) -> str:
    path = settings.INSTRUCTIONS_FOR
    if path is None:
        return ""
    try:
        text = await call_host(path, session)
    except Exception as error:  # the function is the host's code
        raise InstructionsFailed from error
    if not isinstance(text, str | None):
        problem = TypeError(f"{path} must return a str or None, not {type(text).__name__}")
        raise InstructionsFailed from problem
    return text or ""
