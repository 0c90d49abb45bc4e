"""Generates docs/reference/errors.md from the classes and the tables of the transports."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import django
from django.conf import settings

if not settings.configured:  # run as a script
    apps = ["django.contrib.contenttypes", "django.contrib.auth", "chatmemory"]
    settings.configure(INSTALLED_APPS=apps)
    django.setup()

from chatmemory import errors, services  # the models need the settings
from chatmemory.api.errors import HTTP_ONLY, STATUSES, entry_for
from chatmemory.consumers.handler import FINAL_ERRORS
from chatmemory.consumers.lifecycle import CLOSE_CODES
from chatmemory.errors import BadInput, ChatMemoryError, ModelError

INTRO = """# The errors

`chatmemory.errors` has a class for each code. Python code catches the class, or `ChatMemoryError`
for all of them. Clients decide by `code`, and by `retry`: whether the unchanged call may succeed
later. The quoted sentence is the default text. An error can have a more exact one, and the pages
translate it. `python docs/generate/errors_page.py` generates this page from the code.
"""

OF_CALLS = """## Of calls

A service raises the error. REST answers with its status and a
[problem](api.md#errors), a socket with an [`error`](frames.md#error) frame.
"""

OF_INPUT = """## Of bad input

`BadInput` has one of these codes, `field`, the path of the invalid value (empty for the whole
input), and `limit` if the input exceeds one. REST answers 400, and 413 to `too_large`. Do not
repeat the call: correct the input. [Bad inputs](bad-inputs.md) has examples of each.

| code | the input |
| --- | --- |
"""

OF_REPLIES = """## Of replies

The call that sent the message has succeeded, and the error is stored: the turn ends as `failed`,
and its last message has the code as `error`. The partial text stays. Send the question again, or
[replace](protocol.md#from-the-client) it. A responder may raise a `ModelError` with a code of its
own.
"""

OF_HTTP = """## Only over HTTP

| status | code | text |
| --- | --- | --- |
"""

REMEDIES = {
    "internal": "The answer has a `ref`. The log has the class and the frames of the error under "
    "it.",
    "unauthenticated": "Sign in, or request a new token or ticket. Keep what was not sent.",
    "other_person": "Reload the page, which was made for another user.",
    "forbidden": "Do not repeat the call. An operator grants permissions and checks REACH; a page "
    "checks its CSRF token.",
    "role_forbidden": "Omit `role`. Server code stores other roles with `append_messages`.",
    "impersonated": "End the impersonation.",
    "refused": "Show the sentence to the person. A program decides by `reason`.",
    "not_found": "Check the key and the scope. A session of another person is not found either.",
    "unknown_turn": "Check the `client_id`, and that the turn belongs to this session.",
    "conflict": "Read the current state, then decide. A different message needs a `client_id` of "
    "its own.",
    "history_cleared": "Load the session, and let the person decide whether to send the message "
    "into the cleared chat.",
    "archived": "Unarchive the session, or open another one.",
    "held": "An operator must release the hold first.",
    "busy": "Repeat it after the turn has ended, or send with another `if_busy`.",
    "queue_full": "Repeat it after a turn has ended. QUEUE_DEPTH is the limit.",
    "rate_limited": "Repeat it after `retry_after` seconds, with the same `client_id`.",
    "unavailable": "Repeat it with the same `client_id`: a stored message is then a duplicate.",
    "model_error": "The log has the class of the error. Send the question again.",
    "responder_error": "Correct the bot: the log has the class and the frames of its error, and "
    "the signal `responder_failed` the error itself.",
    "instructions_failed": "Correct the function: the log has the class and the frames.",
    "turn_end_error": "Correct the app: the log has the class and the frames.",
    "model_unavailable": "Send the question again later.",
    "model_rate_limited": "Send the question again later.",
    "model_access_denied": "Set a valid API key, or pay for more quota.",
    "model_not_found": "Correct the name of the model in RESPONDER or in the bot.",
    "context_too_long": "Lower WINDOW_TOKENS below the limit of the model, or begin a new session.",
    "blocked": "Change the question.",
    "no_checkpointer": "Install [`chatmemory.langgraph`](../howto/agents.md#a-graph-that-asks), or "
    "compile the graph with a checkpointer.",
    "model_timeout": "Ask for less, or raise TURN_TIMEOUT.",
}
"""What the caller does, or an operator, for each code."""

INPUTS = {
    "bad_json": "is not JSON, has an object with a duplicate key, or is incomplete",
    "bad_shape": "is no JSON object",
    "too_deep": "is nested more than 32 levels deep",
    "bad_number": "has a number that a browser would not read exactly, or `NaN`",
    "bad_field": "lacks a field, or has a value of another type, form or range",
    "unknown_field": "has a field or parameter that does not exist",
    "bad_text": "has a text with NUL, a control character or a lone surrogate",
    "empty": "has a text without a visible character",
    "too_many": "exceeds a number of messages, tool calls or sessions",
    "too_large": "exceeds a size",
    "bad_frame": "is a binary frame; the third one closes the socket with 4400",
    "unknown_type": "is a frame of an unknown `type`; the third one closes the socket with 4400",
    "not_ready": "is a frame before `hello`, or a second `hello`; the third one closes the socket "
    "with 4400",
    "unsupported_version": "is a `hello` of another version; the socket closes with 4426",
}
"""What each code of `BadInput` means."""


MAX_SERVICES = 12
"""More services that raise an error are only counted."""


def page() -> str:
    """Return the page as Markdown: the classes in source order, in sections by their use."""
    known = [*classes()]
    calls = [kind for kind in known if not issubclass(kind, ModelError | BadInput)]
    http = (f"| {status} | `{code}` | {text} |\n" for status, code, text in HTTP_ONLY.values())
    return "\n".join(
        [
            INTRO,
            OF_CALLS,
            *(_section(kind, _answers(kind)) for kind in calls),
            OF_INPUT + "".join(f"| `{code}` | {text} |\n" for code, text in INPUTS.items()),
            OF_REPLIES,
            *(_section(kind) for kind in known if issubclass(kind, ModelError)),
            OF_HTTP + "".join(http),
        ]
    )


def classes() -> Iterator[type[ChatMemoryError]]:
    """Yield the classes of errors, in source order."""
    for kind in vars(errors).values():
        if inspect.isclass(kind) and issubclass(kind, ChatMemoryError):
            yield kind


def _section(kind: type[ChatMemoryError], answers: str = "") -> str:
    text, _, more = inspect.cleandoc(kind.__doc__ or "").partition("\n\n")
    retry = " Retry." if kind.retry else ""
    lines = [f"### `{kind.code}`\n", f"> {text}\n", f"`{kind.__name__}`.{answers}{retry}\n"]
    if more:
        lines.append(f"{more}\n")
    lines.append(f"**What to do:** {_linked(REMEDIES[kind.code])}\n")
    raising = [*_raising(kind)]
    if len(raising) > MAX_SERVICES:
        lines.append(f"From {len(raising)} of the [services](services.md).\n")
    elif raising:
        lines.append(f"From {', '.join(raising)}.\n")
    return "\n".join(lines)


def _answers(kind: type[ChatMemoryError]) -> str:
    status = entry_for(STATUSES, kind)
    close = CLOSE_CODES.get(kind.code)
    if close is None:
        return f" REST {status}; socket `error`."
    shown = f"[close {close}](protocol-limits.md#codes)"
    how = f", then {shown}" if kind.code in FINAL_ERRORS else f"; {shown} if it ends the socket"
    return f" REST {status}; socket `error`{how}."


def _raising(kind: type[ChatMemoryError]) -> Iterator[str]:
    """Yield the services whose docstrings name the class, as links."""
    for name in services.__all__:
        function = getattr(services, name)
        if name.startswith("a") and name[1:] in services.__all__:
            continue  # the async version of another one
        text = " ".join((function.__doc__ or "").split())
        found = re.search(r"Raises ([^.]+)\.", text) if inspect.isfunction(function) else None
        if found and re.search(rf"\b{kind.__name__}\b", found[1]):
            versions = [version for version in (name, f"a{name}") if version in services.__all__]
            yield f"[`{name}`](services.md#{'-'.join(versions)})"


def _linked(text: str) -> str:
    return re.sub(r"\b[A-Z]{4,}(?:_[A-Z]+)*\b", _setting, text)


def _setting(found: re.Match[str]) -> str:
    known = found[0] in ("REACH", "RESPONDER") or "_" in found[0]
    return f"[`{found[0]}`](settings.md#{found[0].lower()})" if known else found[0]


if __name__ == "__main__":
    (Path(__file__).resolve().parents[1] / "reference/errors.md").write_text(page())
