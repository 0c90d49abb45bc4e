"""What a message shows at its end: its footnotes, and definitions that no link uses.

Footnotes need mdit-py-plugins; without it they are text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.rules_block import StateBlock, reference
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict

from chatmemory.rendering.budget import OverBudget
from chatmemory.rendering.text import escaped

try:
    from mdit_py_plugins.footnote import footnote_plugin
    from mdit_py_plugins.footnote.index import footnote_def
except ImportError:  # the extra `page` is not installed
    footnote_plugin = None  # type: ignore[assignment]  # checked before use

_LABEL = re.compile(r"\[\^([^ \]]+)\]:")


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """A link reference definition, such as `[label]: https://example.org`."""

    label: str | None
    """None if the label was already defined: this definition has no effect."""

    source: str


def enable(parser: MarkdownIt) -> None:
    """Add the rules for definitions, and for footnotes if mdit-py-plugins is installed."""
    parser.options["store_labels"] = True
    if footnote_plugin is not None:
        parser.use(footnote_plugin, inline=False, move_to_end=False)
        parser.block.ruler.at("footnote_def", _footnote, {"alt": ["paragraph", "reference"]})
        parser.add_render_rule("footnote_ref", _render_reference)
        parser.add_render_rule("footnote_back", _render_back)
    parser.block.ruler.at("reference", _definition)


class Notes:
    """The footnotes and definitions of one text, in `env`, the state of its parser."""

    def __init__(self, env: EnvType) -> None:
        self._definitions: list[Definition] = env.setdefault("definitions", [])
        self._labels: dict[str, object] = env.setdefault("references", {})
        self._numbering = env.setdefault("footnotes", {"refs": {}, "list": {}})
        self._used: set[str] = set()
        self._references: dict[int, list[int]] = {}
        """The references of each footnote that the HTML contains; the parser also counts others."""
        self._sources: list[tuple[str, list[Token]]] = []
        self._found: dict[str, list[Token]] = {}
        self._repeated: list[list[Token]] = []

    @contextmanager
    def of_block(self) -> Iterator[None]:
        """Forget what a block defines if it exceeds the budget: all of it is shown as text."""
        count = len(self._definitions)
        labels = [(known, len(known)) for known in (self._labels, self._numbering["refs"])]
        try:
            yield
        except OverBudget:
            del self._definitions[count:]
            for known, known_before in labels:
                while len(known) > known_before:
                    known.popitem()
            raise

    def take(self, tokens: Sequence[Token]) -> list[Token]:
        """Keep the footnotes among the tokens of a block, and return the other tokens."""
        levels: list[list[Token]] = [[]]
        labels: list[str] = []
        for token in tokens:
            if token.type == "footnote_reference_open":
                labels.append(token.meta["label"])
                levels.append([])
            elif token.type == "footnote_reference_close":
                label, content = labels.pop(), levels.pop()
                self._sources.append((label, content))
                if label in self._found:
                    self._repeated.append(content)
                else:
                    self._found[label] = content
            else:
                levels[-1].append(token)
        return levels[0]

    def record_references(self, tokens: Sequence[Token]) -> None:
        """Note which definitions and footnotes a block uses that is shown as rendered."""
        for token in tokens:
            for child in token.children or ():
                if child.type in ("link_open", "image"):
                    self._used.add(child.meta.get("label", ""))
                elif child.type == "footnote_ref":
                    self._references.setdefault(child.meta["id"], []).append(
                        child.meta["subId"] + 1
                    )

    @property
    def has_definitions(self) -> bool:
        """Whether the text has link reference definitions."""
        return bool(self._definitions)

    @property
    def has_footnotes(self) -> bool:
        """Whether the text has footnotes, with references or without."""
        return bool(self._sources)

    def escaped_footnotes(self, prefix: str) -> str:
        """Return the list of footnotes for a text above its limits: only escaped.

        The references that are already shown still lead to their footnotes.
        """
        numbers = {note["label"]: id_ + 1 for id_, note in self._numbering["list"].items()}
        items = []
        for label, tokens in self._sources:
            text = "\n".join(token.content for token in tokens if token.content)
            number = numbers.pop(label, None)
            anchor = f' id="{prefix}fn{number}"' if number else ""
            items.append(f"<li{anchor}>{escaped(f'[^{label}]: {text}')}</li>\n")
        return f'<section class="footnotes">\n<ul>\n{"".join(items)}</ul>\n</section>\n'

    def footnotes(
        self,
        parse_text: Callable[[list[Token]], None],
        render: Callable[[Sequence[Token]], str],
        prefix: str,
    ) -> str:
        """Return the list of footnotes as HTML, in order of their first references.

        Footnotes without a reference follow, so that no content disappears.
        """
        contents = self._numbered(parse_text)
        for content in contents:
            self.record_references(content)
        items = []
        for number, content in enumerate(contents, 1):
            references = self._references.get(number - 1, [])
            back = Token("footnote_back", "", 0, meta={"number": number, "references": references})
            tokens = [*content, back]
            if content and content[-1].type == "paragraph_close":
                content[-2].children = [*(content[-2].children or ()), back]
                tokens = content
            items.append(f'<li id="{prefix}fn{number}">{render(tokens)}</li>\n')
        return f'<section class="footnotes">\n<ol>\n{"".join(items)}</ol>\n</section>\n'

    def unused_definitions(self) -> list[str]:
        """Return each definition without a link as HTML."""
        return [
            escaped(definition.source).replace("<p>", '<p class="definition">', 1)
            for definition in self._definitions
            if definition.label is None or definition.label not in self._used
        ]

    def _numbered(self, parse_text: Callable[[list[Token]], None]) -> list[list[Token]]:
        """Return the contents of footnotes, of which `parse_text` may find more references."""
        numbered: dict[int, dict[str, object]] = self._numbering["list"]
        contents: list[list[Token]] = []
        while len(contents) < len(numbered) or self._found or self._repeated:
            if len(contents) == len(numbered):
                unreferenced = next(iter(self._found), None)
                numbered[len(numbered)] = {"label": unreferenced, "count": 0}
                if unreferenced is not None:
                    self._numbering["refs"][f":{unreferenced}"] = len(contents)
            label = numbered[len(contents)]["label"]
            is_repeated = label is None
            content = self._repeated.pop(0) if is_repeated else self._found.pop(str(label), [])
            contents.append(content)
            parse_text(content)
        return contents


def _footnote(state: StateBlock, start_line: int, end_line: int, silent: bool) -> bool:
    """Apply the plugin's rule; a repeated label does not change the number of the first."""
    line = state.src[state.bMarks[start_line] + state.tShift[start_line] : state.eMarks[start_line]]
    label = _LABEL.match(line)
    if label is None:
        return False
    numbers = state.env["footnotes"]["refs"]
    number = numbers.get(f":{label[1]}")
    try:
        return footnote_def(state, start_line, end_line, silent)
    finally:
        if number is not None:
            numbers[f":{label[1]}"] = number


def _definition(state: StateBlock, start_line: int, end_line: int, silent: bool) -> bool:
    """Apply the library's rule, and note the definition."""
    known: dict[str, object] = state.env.setdefault("references", {})
    count = len(known)
    is_footnote = state.src.startswith("[^", state.bMarks[start_line] + state.tShift[start_line])
    if is_footnote or not reference(state, start_line, end_line, silent):
        return False
    if not silent:
        source = state.getLines(start_line, state.line, state.blkIndent, False).strip()
        label = next(reversed(known)) if len(known) > count else None
        state.env["definitions"].append(Definition(label=label, source=source))
    return True


def _render_reference(
    _: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType
) -> str:
    number, prefix = tokens[index].meta["id"] + 1, env["prefix"]
    nth = tokens[index].meta["subId"] + 1
    return (
        f'<sup class="footnote-ref"><a href="#{prefix}fn{number}" '
        f'id="{prefix}fnref{number}-{nth}">[{number}]</a></sup>'
    )


def _render_back(
    _: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType
) -> str:
    number, references = tokens[index].meta["number"], tokens[index].meta["references"]
    # The second character forbids the form of an emoji.
    return "".join(
        f' <a class="footnote-back" href="#{env["prefix"]}fnref{number}-{nth}">\u21a9\ufe0e</a>'
        for nth in references
    )
