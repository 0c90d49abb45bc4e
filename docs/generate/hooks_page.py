"""Generates docs/reference/signals-and-hooks.md from the signals and the docstrings of settings."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from chatmemory import conf, signals

INTRO = """# Signals and hooks

What of your code the app calls: receivers of signals, and the functions that
[settings](settings.md) name by a dotted path. [How-tos](../README.md#your-project) have examples.
`python docs/generate/hooks_page.py` generates this page from `chatmemory/signals.py` and
`chatmemory/conf.py`.
"""

WHICH = """## Which of four

Four settings refuse something. The first row that fits names the right one:

| to decide | setting | a refusal | the person sees |
| --- | --- | --- | --- |
"""

ADMISSIONS = (
    (
        "admission by more than the login: second factor, consent, address of the network",
        "[`GATE`](../howto/gate.md#one-gate-for-pages-rest-and-sockets)",
        "raises `Refused`",
        "your sentence in place of the chat; open sockets close within 5 s",
    ),
    (
        "who may chat at all, also later in a turn that waits: an ended subscription",
        "[`REACH`](settings.md#reach)",
        "returns false",
        '"You may not chat here."; open sockets close at the next frame, and waiting turns are '
        "cancelled",
    ),
    (
        "whether a person may open one more chat, and with which prompt",
        "[`NEW_SESSION`](../howto/new-sessions.md)",
        "raises `Refused` or `Forbidden`",
        "your sentence; other chats stay usable",
    ),
    (
        "whether this message is sent: quota, content, plan",
        "[`BEFORE_SEND`](../howto/quotas.md)",
        "raises `Refused`",
        "your sentence at the message, which stays in the browser and can be edited",
    ),
)

AFTER_ADMISSIONS = """
None of them stops a reply that is being written. If your code calls services for a user or visitor,
they ask `NEW_SESSION` and `BEFORE_SEND`; as an operator or the server, neither. The start of each
turn of a person asks `REACH`.
"""

FUNCTIONS = """## Functions that settings name

Each is called outside of the app's transactions, unless *lock* states it, so it may query the
database. It may be async where the signature has *async*. An error of `chatmemory.errors` is the
answer to the client, with its text, where *error* does not state otherwise. Every other error is
`internal`: the client gets a `ref`, under which the log has the class and frames.
"""


@dataclass(frozen=True, kw_only=True)
class Hook:
    """How the function of a setting is called."""

    signature: str
    called: str
    error: str = "the answer; nothing is stored"
    lock: str = "none"


LIMIT = Hook(
    signature="`f(actor)` → number or None",
    called="before what it limits is counted",
    error="the answer; a result of another type is `internal`",
)

HOOKS: Mapping[str, Hook] = {
    "RESPONDER": Hook(
        signature="async generator `f(messages, session)`; or a factory, also async, `f(session)` "
        "→ Runnable or such a generator; or a Runnable",
        called="for each turn, in the event loop of the runner; a sync factory in a thread",
        error="ends the turn as failed, with the code of a `ModelError`, else `responder_error`",
    ),
    "INSTRUCTIONS_FOR": Hook(
        signature="`f(session)` → text or None; or async",
        called="for each turn of a session without instructions, before the model",
        error="ends the turn as failed with `instructions_failed`",
    ),
    "NEW_SESSION": Hook(
        signature="`f(actor, asked)` → dict or None",
        called="before a person's new session is stored; may be repeated for one",
    ),
    "BEFORE_SEND": Hook(
        signature="`f(actor, sending)` → None; or async",
        called="before a person's message is stored; 10 s on a socket",
        error="the answer; nothing is stored. A result that is not None is `internal`",
    ),
    "TITLE": Hook(
        signature="`f(messages, session)` → text; or async",
        called="after one of the first three turns of a session without a title; 30 s",
        error="only logged; the next turn calls it again",
    ),
    "TOKEN_COUNTER": Hook(
        signature="`f(text)` → number",
        called="when a message is stored",
        error="only logged, once; the tokens are counted approximately",
        lock="the session's, if the turn of a dead process ends or a waiting batch is stored",
    ),
    "ERASURE_LIST": Hook(
        signature="`f()` → object with `append(line)` and `lines()`",
        called="before the first delete of an erasure, and by `replay_erasures`",
        error="`unavailable`; nothing is erased",
    ),
    "SOCKET_AUTH": Hook(
        signature="`f(scope)` → None, a user, or a user and a text; or async",
        called="at each handshake of a websocket without a ticket",
        error="closes the socket; another error than ours with 1011",
    ),
    "API_AUTHENTICATION": Hook(
        signature="classes of REST framework, each `authenticate(request)` → None, or a user and "
        "what identifies the credential",
        called="at each REST request, before the Django session",
        error="401 for those of REST framework",
    ),
    "VALID_LOGINS": Hook(
        signature="`f(logins)` → the valid ones of the list",
        called="before each frame and write, and every 5 s for the open sockets",
        error="refuses the write; open sockets stay open",
    ),
    "GATE": Hook(
        signature="`f(visit)` → None; or async",
        called="at each page, REST request and handshake, before each write, and every 5 s for "
        "the open sockets",
        error="refuses the visit, as a result that is not None; open sockets stay open without "
        "being able to write, unless it is an error of ours",
    ),
    "IMPERSONATOR": Hook(
        signature="`f(visit)` → None, a user, or a pair of users; or async",
        called="whenever `GATE` is, after it",
        error="as of `GATE`",
    ),
    "REACH": Hook(
        signature="`f(actor)` → true or false",
        called="at each `hello`, write, page and REST request, and before a turn starts",
    ),
    "EMBEDS": Hook(
        signature="a mapping: `mapping.get(key)` → list of origins",
        called="at each request and handshake of another site",
    ),
    "READS_PER_MINUTE": LIMIT,
    "WRITES_PER_MINUTE": LIMIT,
    "SENDS_PER_MINUTE": LIMIT,
    "TOKENS_PER_DAY": LIMIT,
    "MAX_SESSIONS_PER_USER": LIMIT,
}
"""The settings that name code of the host."""


def page() -> str:
    """Return the page as Markdown: the four admissions, the functions, then the signals."""
    rows = (
        f"| [`{name}`](settings.md#{name.lower()}) | {hook.signature} | {hook.called} | "
        f"{hook.error} | {hook.lock} |"
        for name, hook in HOOKS.items()
    )
    return "\n".join(
        [
            INTRO,
            WHICH + "".join(f"| {' | '.join(row)} |\n" for row in ADMISSIONS) + AFTER_ADMISSIONS,
            FUNCTIONS,
            "| setting | signature | called | error | lock |",
            "| --- | --- | --- | --- | --- |",
            *rows,
            "",
            "## Signals\n",
            *_signals(),
        ]
    )


def settings_of_host() -> set[str]:
    """Return the settings whose docstrings state that they name code of the host."""
    words = ("dotted path", "mapping of its own")
    return {
        name
        for name, text in _documented(conf.Settings)
        if any(word in " ".join(text.split()) for word in words)
    }


def _signals() -> Iterator[str]:
    module = inspect.cleandoc(signals.__doc__ or "")
    announced, _, rest = module.partition("\n\n")
    yield f"`chatmemory.signals` has these. {announced.replace('Signals, each', 'Each is')}\n"
    yield f"{rest}\n"
    yield "| signal | sent when, and with |"
    yield "| --- | --- |"
    for name, text in _documented(signals):
        if isinstance(getattr(signals, name), signals.Signal):
            yield f"| `{name}` | {' '.join(text.split())} |"
    yield ""


def _documented(source: object) -> Iterator[tuple[str, str]]:
    """Yield the assigned names of a module or class that a docstring follows."""
    tree = ast.parse(inspect.getsource(source))  # type: ignore[arg-type]  # a module or class
    first = tree.body[0]
    body = first.body if isinstance(first, ast.ClassDef) and source is conf.Settings else tree.body
    for assigned, documented in pairwise(body):
        match assigned, documented:
            case (
                ast.Assign(targets=[ast.Name(id=name)]),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                yield name, text


if __name__ == "__main__":
    (Path(__file__).resolve().parents[1] / "reference/signals-and-hooks.md").write_text(page())
