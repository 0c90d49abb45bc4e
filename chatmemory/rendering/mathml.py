"""Convert formulas in LaTeX to MathML, if latex2mathml is installed."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from html import unescape
from xml.etree.ElementTree import Element

from django.utils.html import escape

from chatmemory.rendering.budget import Budget

try:
    from latex2mathml.converter import convert_to_element
except ImportError:  # the extra `page` is not installed
    IS_INSTALLED = False
else:
    IS_INSTALLED = True

MAX_FORMULA_CHARS = 2_000
"""Longer formulas are shown as source."""

MAX_DEPTH = 50
"""Formulas with more levels are shown as source. The library calls itself up to three times for
each, and would exceed Python's limit at a depth that depends on the caller."""

_OPERATOR = {"accent", "fence", "form", "largeop", "lspace", "maxsize", "minsize", "movablelimits"}
_FONT = {"mathvariant"}
ATTRIBUTES = {
    "math": {"alttext", "display"},
    "menclose": {"notation"},
    "mfrac": {"linethickness"},
    "mi": _FONT,
    "mn": _FONT,
    "mo": {*_OPERATOR, *_FONT, "rspace", "separator", "stretchy"},
    "mover": {"accent"},
    "mpadded": {"width"},
    "mspace": {"width"},
    "mstyle": {"displaystyle", "scriptlevel"},
    "mtable": {"displaystyle"},
    "mtd": {"class"},
    "mtext": _FONT,
}
"""The attributes that browsers draw, except colors, and heights that leave the place."""

TAGS = {
    *ATTRIBUTES,
    *("mroot", "mrow", "msqrt", "msub", "msubsup", "msup", "mtr", "munder"),
    "munderover",
}
"""The elements that browsers draw, except `mphantom`, whose content would disappear."""

# Lengths below 10 that are not negative: others could draw over the rest of the page.
_VALUE = re.compile(r"[a-z-]+|(?:\d|\d?\.\d{1,3}|\d\.\d{1,3})(?:em|ex|pt|px)?")
# The library does not know these environments, and would number the lines of `align`.
_ENVIRONMENT = re.compile(
    r"(\\(?:begin|end)\s*)\{(?:(align(?:ed)?)|(?:gather(?:ed)?\*?)|(dcases))\}"
)
_CHILDREN = {
    **dict.fromkeys(("mfrac", "mover", "mroot", "msub", "msup", "munder"), 2),
    **dict.fromkeys(("msubsup", "munderover"), 3),
}
_ROWS = {"mpadded", "mrow", "msqrt", "mstyle", "mtd"}
_SPACED = {"mo", "mspace", "mtext"}
_SPACE = '<mspace width="0.167em"></mspace>'
# A macro can grow without a limit; a comment would disappear.
_REFUSED = re.compile(r"\\(?:(?:re)?new|provide|def|let|Declare)|(?<!\\)%")
_LEVEL = re.compile(r"\\[A-Za-z]+|\\.|\S", re.DOTALL)


class _Unsupported(Exception):
    """The MathML contains what browsers do not draw, such as an unknown command."""


def is_allowed(name: str, value: str) -> bool:
    """Whether an attribute of a formula may have this value."""
    return name == "alttext" or _VALUE.fullmatch(value) is not None


def mathml(latex: str, budget: Budget, *, is_block: bool) -> str | None:
    """Return a formula as MathML that is not sanitized; None if its source must be shown.

    The growth of the formula counts as that of a text of twice its length.
    """
    is_refused = (
        len(latex) > MAX_FORMULA_CHARS or _REFUSED.search(latex) or _depth(latex) > MAX_DEPTH
    )
    if not IS_INSTALLED or is_refused or budget.formula_seconds < 0:
        return None
    started = time.thread_time()
    try:
        known = _ENVIRONMENT.sub(_known_environment, latex)
        row = convert_to_element(known, display="block" if is_block else "inline")[0]
        content = _html(row)
    except Exception:  # the library raises many kinds of errors for bad input
        return None
    finally:
        budget.formula_seconds -= time.thread_time() - started
    budget.add_text(len(latex))
    display = ' display="block"' if is_block else ""
    return f'<math alttext="{escape(latex)}"{display}>{content}</math>'


def _depth(latex: str) -> int:
    """Return an upper bound of the levels of a formula.

    Commands without other text between them may be arguments of one another.
    """
    depth = most = 0
    outer: list[int] = []
    for token in _LEVEL.findall(latex):
        if token in ("{", "[", "\\left", "\\begin"):
            outer.append(depth)
            depth += 1
        elif token in ("}", "]", "\\right", "\\end"):
            depth = outer.pop() if outer else 0
        elif token[0] in "\\_^":
            depth += 1
        else:
            depth = outer[-1] + 1 if outer else 0
        most = max(most, depth)
    return most


def _known_environment(found: re.Match[str]) -> str:
    name = "align*" if found[2] else "cases" if found[3] else "matrix"
    return f"{found[1]}{{{name}}}"


def _html(node: Element) -> str:
    """Return an element as HTML. Raises _Unsupported."""
    children = [_html(child) for child in node]
    content = "".join(_spaced(node, children))
    if node.tag == "mrow" and len(node) == 1:
        return content
    text = unescape(node.text or "")
    is_unknown = node.tag == "mi" and (text == "&" or (text[:1] == "\\" and text != "\\"))
    is_struck = node.tag == "menclose" and node.get("notation") != "box"
    is_incomplete = len(node) != _CHILDREN.get(node.tag, len(node))
    if node.tag not in TAGS or is_unknown or is_struck or is_incomplete or node.get("linebreak"):
        raise _Unsupported
    attributes = dict(node.items())
    if side := attributes.pop("columnalign", None):
        attributes["class"] = f"align-{side}"  # browsers align cells by style only
    if node.tag == "mi" and len(text) == 1 and text.isascii() and text != node.text:
        attributes["mathvariant"] = "normal"  # the library replaces `\mathrm{d}` by a reference
    shown = "".join(f' {name}="{escape(value)}"' for name, value in attributes.items())
    return f"<{node.tag}{shown}>{escape(text)}{content}</{node.tag}>"


def _spaced(node: Element, children: list[str]) -> Iterator[str]:
    """Yield the HTML of the children, with a space beside the name of a function."""
    for left, right, html in zip([None, *node], node, children, strict=False):
        is_pair = left is not None and {left.tag, right.tag}.isdisjoint(_SPACED)
        if is_pair and node.tag in _ROWS and (_is_name(left) or _is_name(right)):
            yield _SPACE
        yield html


def _is_name(node: Element) -> bool:
    """Whether an element is the name of a function, such as `sin`, with or without a power."""
    while node.tag in ("msup", "msub", "msubsup"):
        node = node[0]
    return node.tag == "mi" and len(node.text or "") > 1 and (node.text or "").isalpha()
