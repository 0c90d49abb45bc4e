"""The Markdown parser: CommonMark and extensions, with a budget."""

from __future__ import annotations

from collections.abc import Sequence

from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml, unescapeAll
from markdown_it.renderer import RendererHTML
from markdown_it.rules_block import StateBlock, table
from markdown_it.rules_core import StateCore
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict

from chatmemory.rendering import formulas, links, notes, scrolling
from chatmemory.rendering.budget import Budget
from chatmemory.rendering.highlighting import highlighted

CHECKBOXES = {True: "☑", False: "☐"}


class Parser(MarkdownIt):
    """Parses blocks, then their text. `env` is the state of one text, with its budget."""

    def __init__(self) -> None:
        super().__init__("commonmark", {"html": False, "breaks": True, "xhtmlOut": False})
        self.options["tasklists"] = True
        self.enable(["table", "strikethrough"])
        self.core.ruler.disable(["normalize", "block"])
        self.core.ruler.after("inline", "tasks", _mark_tasks)
        formulas.enable(self)
        links.enable(self)
        notes.enable(self)
        self.block.ruler.before("table", "budget", _count_block)
        self.block.ruler.at("table", _bounded_table, {"alt": ["paragraph", "reference"]})
        self.inline.ruler.before("text", "budget", _count_inline)
        self.add_render_rule("fence", _render_fence)
        self.add_render_rule("code_block", _render_code)
        self.add_render_rule("table_open", _render_table_open)
        self.add_render_rule("table_close", _render_table_close)
        self.add_render_rule("list_item_open", _render_item)
        self.add_render_rule("checkbox", _render_checkbox)
        self.add_render_rule("s_open", _render_deleted_open)
        self.add_render_rule("s_close", _render_deleted_close)

    def validateLink(self, url: str) -> bool:  # noqa: N802  # overrides the library's method
        return links.is_allowed(url)

    def parse_blocks(self, source: str, env: EnvType) -> list[Token]:
        """Return the tokens of the blocks; their text is not parsed."""
        return self.block.parse(source, self, env, []) or []

    def parse_text(self, tokens: list[Token], env: EnvType) -> None:
        """Parse the text of blocks, in place."""
        self.core.process(StateCore("", self, env, tokens))


def _count_block(state: StateBlock, start_line: int, end_line: int, silent: bool) -> bool:
    budget: Budget = state.env["budget"]
    budget.count_step()
    budget.check_nesting(state.level)
    return False


def _count_inline(state: StateInline, silent: bool) -> bool:
    budget: Budget = state.env["budget"]
    budget.count_step()
    return False


def _bounded_table(state: StateBlock, start_line: int, end_line: int, silent: bool) -> bool:
    """Apply the library's table rule to at most the lines for which the budget has cells."""
    budget: Budget = state.env["budget"]
    if start_line + 1 >= end_line:
        return False
    header = state.src[state.bMarks[start_line] : state.eMarks[start_line]].strip()
    # An upper bound: it also counts escaped bars.
    columns = header.removeprefix("|").removesuffix("|").count("|") + 1
    lines = budget.cells // columns + 1  # the delimiter line has no cells
    count = len(state.tokens)
    if lines < 2 or not table(state, start_line, min(end_line, start_line + lines), silent):
        return False
    if not silent:
        budget.cells -= columns * (state.line - start_line - 1)
        for token in state.tokens[count:]:
            if alignment := token.attrs.pop("style", None):
                token.attrs["class"] = str(alignment).replace("text-align:", "align-")
    return True


def _mark_tasks(state: StateCore) -> None:
    """Move the checkbox of a task to the start of its text."""
    for item, opening, text in zip(state.tokens, state.tokens[1:], state.tokens[2:], strict=False):
        if "checked" in item.meta and opening.type == "paragraph_open":
            checkbox = Token("checkbox", "", 0, meta={"checked": item.meta.pop("checked")})
            text.children = [checkbox, *(text.children or ())]


def _render_checkbox(
    _: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType
) -> str:
    return f'<span class="task-checkbox">{CHECKBOXES[tokens[index].meta["checked"]]}</span> '


def _render_item(
    renderer: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType
) -> str:
    html = renderer.renderToken(tokens, index, options, env)
    if "checked" not in tokens[index].meta:
        return html
    return html + _render_checkbox(renderer, tokens, index, options, env)


def _render_fence(
    renderer: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType
) -> str:
    token = tokens[index]
    language = unescapeAll(token.info).split(maxsplit=1)[:1]
    css_class = f' class="language-{escapeHtml(language[0])}"' if language else ""
    code = highlighted(token.content, "".join(language), env["budget"])
    return f"<pre {scrolling.attributes(scrolling.CODE)}><code{css_class}>{code}</code></pre>\n"


def _render_code(
    _: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType
) -> str:
    code = escapeHtml(tokens[index].content)
    return f"<pre {scrolling.attributes(scrolling.CODE)}><code>{code}</code></pre>\n"


def _render_table_open(
    _: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType
) -> str:
    # An element around it scrolls, since a table with another role is no table to screen readers.
    return f'<div class="table-scroll" {scrolling.attributes(scrolling.TABLE)}>\n<table>\n'


def _render_table_close(
    _: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType
) -> str:
    return "</table></div>\n"


def _render_deleted_open(
    _: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType
) -> str:
    return "<del>"


def _render_deleted_close(
    _: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType
) -> str:
    return "</del>"
