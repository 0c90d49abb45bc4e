"""Generates docs/reference/checks.md from the calls of `Error` and `Warning` with an ID of ours.

The texts are read from the source. What a message inserts is an ellipsis, unless its values are in
the same module.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import product
from pathlib import Path

import django
from django.conf import settings

if not settings.configured:  # run as a script
    names = ("admin", "auth", "contenttypes", "messages", "sessions")
    apps = [*(f"django.contrib.{name}" for name in names), "chatmemory", "chatmemory.search"]
    settings.configure(INSTALLED_APPS=apps)
    django.setup()

from chatmemory.conf import Settings  # read as the modules of the checks are

ROOT = Path(__file__).resolve().parents[2]

INTRO = """# The system checks

`manage.py check` reports wrong settings before they fail at runtime. Each section has the messages
of one ID, and what to do; `…` is a part that the message inserts. An error (E) also stops commands
such as `migrate`, a warning (W) does not. To silence a warning that is intended, add its ID to
Django's setting `SILENCED_SYSTEM_CHECKS`.

Before a deployment run all of them: `manage.py check --deploy --database default`.
`python docs/generate/checks_page.py` generates this page from the checks.
"""

RUNS = {
    "checks.register(deploy=True)": "Only with `--deploy`.",
    "checks.register(checks.Tags.database)": "Only with `--database default`, and by `migrate`.",
}
"""When a check with this decorator runs, if not always."""

MESSAGES = {
    "chatmemory.E009": "CHATMEMORY: …, for a rule of RETENTION.",
    "chatmemory.W018": "ASGI_APPLICATION … is not set, cannot be imported, is Django's own, or "
    "routes no websockets to chatmemory.",
    "chatmemory.W031": "A table lacks columns, indexes, constraints or triggers of the models.",
}
"""Of checks whose message comes from another module."""

REMEDIES = {
    "chatmemory.E002": "Set a value that the message allows.",
    "chatmemory.E003": "Convert a string, such as of an environment variable, to a number.",
    "chatmemory.E004": "Use the dotted path of a function that accepts the arguments of its "
    "[description](signals-and-hooks.md#functions-that-settings-name).",
    "chatmemory.E005": "Install the package of the layer, and correct its BACKEND and CONFIG.",
    "chatmemory.E007": "An origin has no path, and no slash at its end. The hint has the wrong "
    "ones.",
    "chatmemory.E008": "Use `demo`, a model string `provider:model`, or the dotted path of an "
    "async generator function `f(messages, session)`, of a factory `f(session)`, or of a Runnable: "
    "[Responders](../howto/responders.md). The hint has the cause, and the nearest name that "
    "exists.",
    "chatmemory.E009": "Correct the rule.",
    "chatmemory.E017": "Name authentication classes of REST framework that identify a user.",
    "chatmemory.E019": "Write each network as `10.0.0.0/8`. The hint has the wrong one.",
    "chatmemory.E023": "Correct the [model](../howto/own-tables.md).",
    "chatmemory.E024": "Set a value that the message allows.",
    "chatmemory.W001": "Correct the name. The hint has the nearest of the [settings](settings.md).",
    "chatmemory.W016": "Install the package of the provider, such as `langchain-openai`.",
    "chatmemory.W022": "Set ALLOW_ANONYMOUS, or remove the embeds.",
}
"""Of checks that have no hint, or one that is only for a case of them."""

ONE_OF = REMEDIES["chatmemory.E002"]

INSERTED = "…"
MAX_ALTERNATIVES = 12
"""More values of an inserted part are not listed."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
Names = Mapping[str, Sequence[ast.expr]]
"""Names of a function, each with the expressions that it can be."""


@dataclass(frozen=True)
class Finding:
    """What one call reports: the messages and hints that it can have."""

    id: str
    messages: tuple[str, ...]
    hints: tuple[str, ...]
    runs: str


def page() -> str:
    """Return the page as Markdown: the errors, then the warnings, each by its number."""
    found: dict[str, list[Finding]] = {}
    for finding in findings():
        found.setdefault(finding.id, []).append(finding)
    sections = [INTRO]
    for title, letter in (("Errors", "E"), ("Warnings", "W")):
        sections.append(f"## {title}\n")
        ids = sorted(found, key=lambda name: int(name[-3:]))
        sections += [_section(name, found[name]) for name in ids if name[-4] == letter]
    return "\n".join(sections)


def _section(name: str, found: list[Finding]) -> str:
    messages = dict.fromkeys(text for finding in found for text in finding.messages)
    shown = [MESSAGES[name] if _is_unknown(text) else text for text in messages]
    runs = dict.fromkeys(finding.runs for finding in found if finding.runs)
    return "\n".join(
        [
            f"### `{name}`\n",
            *(f"- {_linked(text)}" for text in shown),
            f"\n**What to do:** {_linked(_remedy(name, found))}",
            *(f"\n{text}" for text in runs),
            "",
        ]
    )


def _remedy(name: str, found: list[Finding]) -> str:
    """Return what to do. Raises LookupError if neither the check nor `REMEDIES` has it."""
    if name in REMEDIES:
        return REMEDIES[name]
    if hints := dict.fromkeys(text for finding in found for text in finding.hints):
        return " ".join(hints)
    if all(" must " in message for finding in found for message in finding.messages):
        return ONE_OF
    message = f"{name} needs a hint, or an entry in REMEDIES"
    raise LookupError(message)


def _is_unknown(text: str) -> bool:
    return not re.search(r"\w{3}", text.replace("CHATMEMORY", ""))


def _linked(text: str) -> str:
    """Return a text as Markdown in which settings and pages are links."""
    names = "|".join(name for name in vars(Settings) if name.isupper())
    text = re.sub(r"(?<!\S)docs/(\S+\.md)", r"[docs/\1](../\1)", " ".join(text.split()))
    return re.sub(
        rf"CHATMEMORY\['({names})'\]|\b({names})\b(?!')",
        lambda found: f"[`{found[0]}`](settings.md#{(found[1] or found[2]).lower()})",
        text,
    )


def findings() -> Iterator[Finding]:
    """Yield what the checks of the core and of all optional apps can report."""
    sources = [
        Source(path)
        for path in sorted((ROOT / "chatmemory").rglob("*.py"))
        if 'id="chatmemory.' in path.read_text()
    ]
    runs = _runs([source.tree for source in sources])
    for source in sources:
        yield from source.findings(runs)


def _runs(trees: list[ast.Module]) -> dict[str, str]:
    """Return when each function of checks runs: as the registered function that calls it."""
    functions = [node for tree in trees for node in tree.body if isinstance(node, Function)]
    calls = {
        function.name: {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
        for function in functions
    }
    found: dict[str, str] = {}
    for function in functions:
        registered = [
            RUNS.get(text, "")
            for text in map(ast.unparse, function.decorator_list)
            if text.startswith("checks.register")
        ]
        reached = [function.name] if registered else []
        for name in reached:
            found.setdefault(name, registered[0])
            reached += sorted((calls.get(name, set()) & calls.keys()) - {*reached})
    return found


class Source:
    """A module with checks, and the texts that its expressions can be."""

    def __init__(self, path: Path) -> None:
        self.tree = ast.parse(path.read_text())
        self.module = import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
        self.functions = {node.name: node for node in self.tree.body if isinstance(node, Function)}

    def findings(self, runs: Mapping[str, str]) -> Iterator[Finding]:
        """Yield what the calls of the module report, in source order."""
        for function in self.functions.values():
            last = 0
            for call in sorted(_calls(function), key=lambda call: call.lineno):
                given = {keyword.arg: keyword.value for keyword in call.keywords}
                identifier = given.get("id")
                if not isinstance(identifier, ast.Constant):
                    continue
                shared = _assigned(function, last, call.lineno)
                last = call.lineno
                for names in _rows(function, shared):
                    yield Finding(
                        id=str(identifier.value),
                        messages=tuple(self.texts(call.args[0], function, names)),
                        hints=tuple(self.texts(given.get("hint"), function, names)),
                        runs=runs[function.name],
                    )

    def texts(self, node: ast.expr | None, function: Function, names: Names) -> list[str]:
        """Return the texts that an expression of a function can be."""
        match node:
            case None | ast.Constant(value=None):
                return []
            case ast.Constant(value=value):
                return [str(value)]
            case ast.JoinedStr(values=parts):
                inserted = [self._part(part, function, names) for part in parts]
                return ["".join(choice) for choice in product(*inserted)]
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                both = [self.texts(side, function, names) or [""] for side in (left, right)]
                return ["".join(choice) for choice in product(*both)]
            case ast.IfExp(body=body, orelse=other):
                return [*self.texts(body, function, names), *self.texts(other, function, names)]
            case ast.Name(id=name):
                return self._values(name, function, names)
            case ast.Call(func=ast.Name(id=name)) if name in self.functions:
                called = self.functions[name]
                returned = [
                    (called, node.value)
                    for node in ast.walk(called)
                    if isinstance(node, ast.Return) and node.value
                ]
                return self._all_texts(returned, {})
            case ast.Call(
                func=ast.Attribute(value=ast.Constant(value=str(between)), attr="join"),
                args=[ast.Name(id=name)],
            ) if isinstance(known := getattr(self.module, name, None), Sequence):
                return [between.join(known)]
        return [INSERTED]

    def _part(self, part: ast.expr, function: Function, names: Names) -> list[str]:
        if not isinstance(part, ast.FormattedValue):
            return self.texts(part, function, names)
        found = self.texts(part.value, function, names)
        if part.conversion == ord("r"):
            found = [text if text == INSERTED else repr(text) for text in found]
        return found if 0 < len(found) <= MAX_ALTERNATIVES else [INSERTED]

    def _values(self, name: str, function: Function, names: Names) -> list[str]:
        """Return the texts of a name: of a constant, or of what the function assigns to it."""
        others = {key: value for key, value in names.items() if key != name}
        if name in names:
            values = [(function, value) for value in names[name]]
            return self._all_texts(values, others)
        constant = getattr(self.module, name, None)
        if isinstance(constant, str | int | float):
            return [f"{constant:g}" if isinstance(constant, float) else str(constant)]
        values = [
            *((function, value) for value in _assigned(function).get(name, ())),
            *((function, value) for value in self._yielded(name, function)),
            *self._arguments(name, function),
        ]
        return self._all_texts(values, others) if values else [INSERTED]

    def _all_texts(self, values: Sequence[tuple[Function, ast.expr]], names: Names) -> list[str]:
        texts = [text for function, value in values for text in self.texts(value, function, names)]
        return list(dict.fromkeys(text for text in texts if text))

    def _yielded(self, name: str, function: Function) -> Iterator[ast.expr]:
        """Yield what a generator of the module yields, that a comprehension loops over."""
        for node in ast.walk(function):
            match node:
                case ast.comprehension(
                    target=ast.Name(id=target), iter=ast.Call(func=ast.Name(id=called))
                ) if target == name and called in self.functions:
                    for part in ast.walk(self.functions[called]):
                        if isinstance(part, ast.Yield) and part.value:
                            yield part.value

    def _arguments(self, name: str, function: Function) -> Iterator[tuple[Function, ast.expr]]:
        """Yield what the functions of the module pass for a parameter, and its default."""
        parameters = [argument.arg for argument in function.args.args]
        if name not in parameters:
            return
        position = parameters.index(name) - len(parameters)
        if -position <= len(function.args.defaults):
            yield function, function.args.defaults[position]
        for caller in self.functions.values():
            for call in _calls(caller):
                is_call = isinstance(call.func, ast.Name) and call.func.id == function.name
                if is_call and len(call.args) > parameters.index(name):
                    yield caller, call.args[parameters.index(name)]


def _calls(function: Function) -> Iterator[ast.Call]:
    yield from (node for node in ast.walk(function) if isinstance(node, ast.Call))


def _assigned(function: Function, first: int = 0, last: int = sys.maxsize) -> Names:
    """Return what a function assigns to each name, between two lines."""
    found: dict[str, list[ast.expr]] = {}
    for node in ast.walk(function):
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.NamedExpr(target=ast.Name(id=name), value=value)
            ) if first <= node.lineno <= last:
                found.setdefault(name, []).append(value)
    return found


def _rows(function: Function, names: Names) -> Iterator[Names]:
    """Yield the names with each row of a table in the source that the function loops over."""
    for node in ast.walk(function):
        match node:
            case (
                ast.For(target=ast.Tuple(elts=targets), iter=ast.Tuple(elts=rows))
                | ast.comprehension(target=ast.Tuple(elts=targets), iter=ast.Tuple(elts=rows))
            ):
                for row in rows:
                    values = row.elts if isinstance(row, ast.Tuple) else []
                    named = zip(map(ast.unparse, targets), values, strict=True)
                    yield {**names, **{name: [value] for name, value in named}}
                return
    yield names


if __name__ == "__main__":
    (Path(__file__).resolve().parents[1] / "reference/checks.md").write_text(page())
