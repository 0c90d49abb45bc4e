"""Formulas in LaTeX: MathML if possible, else the source with its delimiters."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence

from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml
from markdown_it.renderer import RendererHTML
from markdown_it.rules_block import StateBlock
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict

from chatmemory.rendering import scrolling
from chatmemory.rendering.mathml import mathml

_WHOLE_BLOCK = re.compile(r" {0,3}(?:\$\$(?:(?!\$\$).)+\$\$|\\\[(?:(?!\\\]).)+\\\])[.,;:]?[ \t]*$")
_BLOCK_START = re.compile(r" {0,3}(?:(\$\$)(?!.*\$\$)|\\\[(?!.*\]))")
_INTERRUPTION = re.compile(r"#{1,6}(?:[ \t]|$)|```|~~~")
_BLOCK_ENDS = {
    "$$": re.compile(r".*\$\$[.,;:]?[ \t]*$"),
    "\\[": re.compile(r".*\\\][.,;:]?[ \t]*$"),
}
_DELIMITERS = re.compile(r"(?:\$\$|\\\[)(.*?)(?:\$\$|\\\])([.,;:]?)[ \t]*", re.DOTALL)
# A backslash protects the next character, also another backslash.
_CLOSERS = {
    "$$": re.compile(r"\\.|(?P<end>\$\$)", re.DOTALL),
    # Prices and shell variables are no formulas: no space before it, no letter, digit or { after.
    "$": re.compile(r"\\.|(?P<end>(?<![ \t\n$])\$(?![\w${]))", re.DOTALL),
    # A link whose brackets are escaped is no link.
    "\\[": re.compile(r"(?P<end>\\\])(?![(\[:])|\\.", re.DOTALL),
    "\\(": re.compile(r"(?P<end>\\\))|\\.", re.DOTALL),
}


def enable(parser: MarkdownIt) -> None:
    """Add the rules for formulas."""
    interrupts = ["paragraph", "reference", "blockquote", "list"]
    parser.block.ruler.before("fence", "formula", _block, {"alt": interrupts})
    parser.inline.ruler.before("escape", "formula", _inline)
    parser.add_render_rule("formula_block", _render_block)
    parser.add_render_rule("formula_inline", _render_inline)


def forget(env: EnvType) -> None:
    """Remove what the rules know of one block from the state of the parser."""
    env.pop("searched_formulas", None)
    env.pop("formula_closers", None)


def is_block(line: str) -> bool:
    """Whether a line is a formula of its own."""
    return _WHOLE_BLOCK.match(line) is not None


def end_of_block(line: str) -> re.Pattern[str] | None:
    """Return the pattern of the last line of the formula that this line starts, if it does."""
    start = _BLOCK_START.match(line)
    return _BLOCK_ENDS[start[1] or "\\["] if start else None


def is_interrupted(line: str) -> bool:
    """Whether a line ends a formula that is not closed, which is then text."""
    return _INTERRUPTION.match(line) is not None


def _block(state: StateBlock, start_line: int, end_line: int, silent: bool) -> bool:
    if state.is_code_block(start_line):
        return False
    first = state.src[
        state.bMarks[start_line] + state.tShift[start_line] : state.eMarks[start_line]
    ]
    line = start_line if is_block(first) else _last_line(state, first, start_line, end_line)
    if line is None:
        return False
    if silent:
        return True
    token = state.push("formula_block", "", 0)
    token.content = state.getLines(start_line, line + 1, state.blkIndent, False).strip()
    token.map = [start_line, line + 1]
    state.line = line + 1
    return True


def _last_line(state: StateBlock, first: str, start_line: int, end_line: int) -> int | None:
    """Return the number of the line that ends the formula; None if the formula has no end."""
    end = end_of_block(first)
    if end is None:
        return None
    # The line before which the formula has no end, which is found once for all starts before it.
    searched: dict[tuple[str, int], int] = state.env.setdefault("searched_formulas", {})
    key = end.pattern, end_line
    if start_line < searched.get(key, 0):
        return None
    # As a terminator of a paragraph in a list, the rule also gets lines outside the list.
    indent = min(state.blkIndent, state.sCount[start_line])
    for line in range(start_line + 1, end_line):
        text = state.src[state.bMarks[line] : state.eMarks[line]]
        if is_interrupted(text) or (text.strip() and state.sCount[line] < indent):
            searched[key] = line
            return None
        if end.match(text):
            return line
    searched[key] = end_line
    return None


def _inline(state: StateInline, silent: bool) -> bool:
    opener = _opener(state)
    if opener is None:
        return False
    start = state.pos + len(opener)
    closers = _closers(state, opener)
    found = bisect_left(closers, start + len(opener) + 1)
    if found == len(closers) or closers[found] > state.posMax:
        return False
    end = closers[found]
    if not state.src[start : end - len(opener)].strip():
        return False
    if not silent:
        token = state.push("formula_inline", "", 0)
        token.content = state.src[state.pos : end]
        token.markup = opener
    state.pos = end
    return True


def _opener(state: StateInline) -> str | None:
    """Return the delimiter that can start a formula at this position, if there is one."""
    opener = state.src[state.pos : state.pos + 2]
    if opener[0] != "$" or opener == "$$":
        return opener if opener in _CLOSERS else None
    is_after_word = state.pos > 0 and state.src[state.pos - 1].isalnum()
    return None if is_after_word or opener[1:] in ("", " ", "\t", "\n") else "$"


def _closers(state: StateInline, opener: str) -> list[int]:
    """Return the positions after each closing delimiter in the text, found once for each text."""
    found: dict[tuple[str, str], list[int]] = state.env.setdefault("formula_closers", {})
    key = state.src, opener
    if key not in found:
        matches = _CLOSERS[opener].finditer(state.src)
        found[key] = [match.end("end") for match in matches if match["end"]]
    return found[key]


def _render_block(
    _: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType
) -> str:
    source = tokens[index].content
    # A mark after the formula would be in a line of its own.
    latex = _DELIMITERS.sub(lambda found: found[1].strip(" \t\n") + found[2], source)
    content = mathml(latex, env["budget"], is_block=True) or escapeHtml(source)
    return f'<div class="math" {scrolling.attributes(scrolling.FORMULA)}>{content}</div>\n'


def _render_inline(
    _: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType
) -> str:
    source, delimiter = tokens[index].content, len(tokens[index].markup)
    latex = source[delimiter:-delimiter].strip()
    content = mathml(latex, env["budget"], is_block=False) or escapeHtml(source)
    return f'<span class="math">{content}</span>'
