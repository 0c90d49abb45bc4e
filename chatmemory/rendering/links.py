"""Links that show where they lead, and images, which only allowed origins may load."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import SplitResult, urlsplit

from django.utils.translation import gettext
from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict

try:
    from linkify_it import LinkifyIt
    from linkify_it.main import Match
except ImportError:  # the extra `page` is not installed
    LinkifyIt = None

SCHEMES = {"http", "https", "mailto"}
REL = "nofollow noopener noreferrer"

_SCHEME = re.compile(r"https?://", re.IGNORECASE)
_MARKS = [f"{mark}_{side}" for mark in ("em", "strong", "s") for side in ("open", "close")]
_TEXTS = {"text", "code_inline", "softbreak", "hardbreak", *_MARKS}
"""The tokens that a link shows as they are written, unlike a formula or an image."""


def enable(parser: MarkdownIt) -> None:
    """Add the rules for links and images, and plain addresses as links if linkify-it-py exists."""
    parser.add_render_rule("link_open", _render_open)
    parser.add_render_rule("link_close", _render_close)
    parser.add_render_rule("image", _render_image)
    if LinkifyIt is not None:
        linkifier = LinkifyIt(options={"fuzzy_link": True, "fuzzy_email": True})
        linkifier.add("ftp:", None).add("//", None)
        parser.linkify = _WebLinks(linkifier)
        parser.options["linkify"] = True
        parser.core.ruler.enable("linkify")


class _WebLinks:
    """The addresses in a text that are surely meant as links.

    Without a scheme only those that start with `www.`: names of files such as `main.py` look like
    domains.
    """

    def __init__(self, linkifier: LinkifyIt) -> None:
        self.pretest = linkifier.pretest
        self.test = linkifier.test
        self._linkifier = linkifier

    def match(self, text: str) -> list[Match]:
        return [link for link in self._linkifier.match(text) or () if _is_meant(link)]


def _is_meant(link: Match) -> bool:
    if link.schema == "mailto:":
        return "+" not in link.url.partition("@")[2]
    return bool(link.schema) or link.text.startswith("www.")


def is_allowed(url: str) -> bool:
    """Whether a link may lead to this address: of an allowed scheme, or on this site."""
    parts = _split_url(url)
    if parts is None:
        return False
    if parts.scheme in ("http", "https") or url.startswith("//"):
        # Browsers also find a host in `https:host` and `///host`, and decode `%2E` in it. Refused,
        # since the host that is shown must be the one that they open.
        return bool(parts.hostname) and "%" not in destination_of(url)
    return not parts.scheme or parts.scheme in SCHEMES


def is_allowed_image(url: str, origins: Sequence[str]) -> bool:
    """Whether the page may load an image from this address."""
    parts = _split_url(url)
    if parts is None:
        return False
    return f"{parts.scheme}://{parts.netloc}".lower() in {origin.lower() for origin in origins}


def destination_of(url: str) -> str:
    """Return the host or the mail address to which a link leads; "" on this site."""
    parts = _split_url(url)
    if parts is None:
        return ""
    if parts.scheme == "mailto":
        return parts.path
    return parts.netloc.rpartition("@")[2]


def shows_destination(text: str, url: str) -> bool:
    """Whether the text of a link begins with its host as a whole, or is its mail address."""
    shown, destination = text.strip().casefold(), destination_of(url).casefold()
    if url.casefold().startswith("mailto:"):
        return shown.removeprefix("mailto:") == destination
    return re.split("[/?#]", _SCHEME.sub("", shown, count=1), maxsplit=1)[0] == destination


def _split_url(url: str) -> SplitResult | None:
    try:
        return urlsplit(url)
    except ValueError:
        return None


def _render_open(
    renderer: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType
) -> str:
    tokens[index].attrs |= {"rel": REL, "target": "_blank"}
    return renderer.renderToken(tokens, index, options, env)


def _render_close(
    renderer: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType
) -> str:
    start = index - 1
    while tokens[start].type != "link_open":
        start -= 1
    url = str(tokens[start].attrGet("href"))
    destination = destination_of(url)
    if not destination or shows_destination(_text_of(tokens[start + 1 : index]), url):
        return "</a>"
    return f'</a><span class="link-host"> ({escapeHtml(destination)})</span>'


def _text_of(tokens: Sequence[Token]) -> str:
    """Return the text of a link; "" if it has parts that can look like any text."""
    if not all(token.type in _TEXTS for token in tokens):
        return ""
    return "".join("\n" if token.type.endswith("break") else token.content for token in tokens)


def _render_image(
    renderer: RendererHTML, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType
) -> str:
    token = tokens[index]
    text = renderer.renderInlineAsText(token.children, options, env)
    if is_allowed_image(str(token.attrGet("src")), env["image_origins"]):
        token.attrs |= {"alt": text, "loading": "lazy", "referrerpolicy": "no-referrer"}
        return renderer.renderToken(tokens, index, options, env)
    description = gettext("image: %(text)s") % {"text": text} if text.strip() else gettext("image")
    return f'<span class="blocked-image">[{escapeHtml(description)}]</span>'
