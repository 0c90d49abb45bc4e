"""What a hostile text can't do."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from urllib.parse import urlsplit

import pytest
from django.test import override_settings

from chatmemory.rendering.cleaning import cleaned
from chatmemory.rendering.links import destination_of, is_allowed, shows_destination
from chatmemory.rendering.markdown import MarkdownStream, markdown
from tests.payloads import ELSEWHERE, PAYLOADS

ORIGIN = "https://images.example"

PLAIN = {
    *("blockquote", "br", "del", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "strong"),
    *("table", "tbody", "thead", "tr"),
}
SCROLLING = {"tabindex": {"0"}, "role": {"group"}, "aria-label": {"Code", "Table", "Formula"}}
CLASSIFIED = {"code", "p", "section", "span", "sup", "td", "th", "ul"}
ALLOWED: dict[str, set[str]] = {
    **{tag: set() for tag in PLAIN},
    **{tag: {"class"} for tag in CLASSIFIED},
    "a": {"class", "href", "id", "rel", "target", "title"},
    "div": {"class", *SCROLLING},
    "pre": {*SCROLLING},
    "li": {"class", "id"},
    "ol": {"class", "start"},
    **{
        tag: set() for tag in ("mroot", "mrow", "msqrt", "msub", "msubsup", "msup", "mtr", "munder")
    },
    **{tag: {"mathvariant"} for tag in ("mi", "mn", "mtext")},
    "math": {"alttext", "display"},
    "menclose": {"notation"},
    "mfrac": {"linethickness"},
    "mo": {
        *("accent", "fence", "form", "largeop", "lspace", "mathvariant", "maxsize", "minsize"),
        *("movablelimits", "rspace", "separator", "stretchy"),
    },
    "mover": {"accent"},
    "mpadded": {"width"},
    "mspace": {"width"},
    "mstyle": {"displaystyle", "scriptlevel"},
    "mtable": {"displaystyle"},
    "mtd": {"class"},
    "munderover": set(),
}
MATHML_VALUE = re.compile(r"[a-z-]+|\d?(\.\d{1,3})?(em|ex|pt|px)?")
CLASS = re.compile(
    r"align-(left|center|right)|language-\S+|hl-[a-z]+|blocked-image|definition|footnote-(back|ref)"
    r"|footnotes|link-host|math|contains-task-list|table-scroll|task-list-item|task-checkbox"
)
VOID = {"br", "hr", "img"}


class Checked(HTMLParser):
    """Fails at a tag, attribute or address that is not allowed, and at tags that do not match."""

    def __init__(self, html: str, *, images: bool = False, has_targets: bool = True) -> None:
        super().__init__()
        self._has_targets = has_targets
        self._images = images
        self.open: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        if self._images and tag == "img":
            assert str(dict(attrs).get("src", f"{ORIGIN}/")).startswith(f"{ORIGIN}/")
            return
        assert tag in ALLOWED
        for name, value in attrs:
            assert name in ALLOWED[tag]
            assert value is not None
            assert value in SCROLLING.get(name, {value})
            if name == "class":
                assert CLASS.fullmatch(value)
            elif tag.startswith("m") and name != "alttext":
                assert MATHML_VALUE.fullmatch(value)
            if name == "id":
                assert re.fullmatch(r"(x-)?fn(ref)?[0-9-]+", value)
            if name == "href":
                self._check_link(value, dict(attrs))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_decl(self, decl: str) -> None:
        pytest.fail(f"a declaration: {decl}")

    def handle_comment(self, data: str) -> None:
        pytest.fail(f"a comment: {data}")

    def _check_link(self, href: str, attributes: dict[str, str | None]) -> None:
        assert attributes["rel"] == "nofollow noopener noreferrer"
        if href.startswith("#"):
            assert re.fullmatch(r"#x-fn(ref)?[0-9-]+", href)
        else:
            assert urlsplit(href).scheme in ("", "http", "https", "mailto")
            assert attributes.get("target", None if self._has_targets else "_blank") == "_blank"


def test_there_are_fifty_payloads():
    assert len(set(PAYLOADS)) >= 50


@pytest.mark.parametrize("payload", PAYLOADS)
def test_a_payload_can_neither_run_scripts_nor_load_resources(payload):
    Checked(markdown(payload, prefix="x-"))
    with override_settings(CHATMEMORY={"IMAGE_ORIGINS": (ORIGIN,)}):
        Checked(markdown(payload, prefix="x-"), images=True)


@pytest.mark.parametrize(
    "html",
    [
        *PAYLOADS,
        f"<img src=https://{ELSEWHERE}/x.png><img src={ORIGIN}/a.png><a id='main'>a</a>",
        "<a href='https://a.example' target='_top'>a</a>",
        "<p style='color: red' class='cm-row' id='main' onclick='x'>a</p>",
        "<a href='javascript:x' id='fn1' target='_top'>a</a><a href='#x-fn1' id='x-fn1'>b</a>",
        "<pre tabindex='1' role='alert' aria-label='Pay'>a</pre><p tabindex='0' role='group'>b</p>",
        "<div tabindex='-1' role='button' aria-label='Codes' class='table-scroll'>a</div>",
        "<code class='language-a b'>c</code><span class='math hl-name'>d</span><p id='x-fn1'>e</p>",
    ],
)
def test_the_allow_list_stops_what_the_parser_would_not(html):
    Checked(cleaned(html, ()), has_targets=False)
    Checked(cleaned(html, (ORIGIN,)), has_targets=False, images=True)


@pytest.mark.parametrize("payload", PAYLOADS)
def test_each_part_of_a_payload_is_safe(payload):
    stream = MarkdownStream(prefix="x-")
    html = ""
    for part in [part for char in payload for part in stream.feed(char)] + stream.close():
        html += part
        ends = {"</thead>": "</table></div>", "</tr>": "</tbody></table></div>"}
        Checked(html + ends.get(html[html.rfind("</") :].strip(), ""))


@pytest.mark.parametrize(
    "url",
    [
        *("javascript:alert(1)", "JAVASCRIPT:x", "vbscript:x", "data:text/html,x", "file:///x"),
        *("data:image/png;base64,x", "ftp://a.example", "tel:1", "blob:x"),
        *("https:a.example", "https:/a.example", "https:///a.example", "///a.example", "//"),
        *("http://", "http://[", "https://@", "https://evil%2Eexample"),
    ],
)
def test_a_link_whose_destination_is_unclear_or_not_the_web_is_text(url):
    assert not is_allowed(url)
    assert ">a</a>" not in markdown(f"[a]({url})")


@pytest.mark.parametrize(
    "url",
    ["https://a.example", "http://a.example:1/b", "//a.example", "mailto:a@b.org", "/a", "#a", ""],
)
def test_links_to_the_web_mail_and_this_site_are_allowed(url):
    assert is_allowed(url)


@pytest.mark.parametrize(
    ("text", "mark"),
    [
        ("[a](https://evil.example/b)", " (evil.example)"),
        ("[a](//evil.example/b)", " (evil.example)"),
        ("[a](https://evil.example:8000/b)", " (evil.example:8000)"),
        ("[good.example](https://evil.example/)", " (evil.example)"),
        ("[https://good.example](https://evil.example/)", " (evil.example)"),
        ("[evil.example.good.example](https://evil.example/)", " (evil.example)"),
        ("[see evil.example](https://evil.example/)", " (evil.example)"),
        ("<https://good.example@evil.example/>", " (evil.example)"),
        ("[a](mailto:a@evil.example?subject=b)", " (a@evil.example)"),
        ("[a](https://b\u00fccher.example)", " (xn--bcher-kva.example)"),
        ("[a]\n\n[a]: https://evil.example", " (evil.example)"),
        (r"[$\text{bank.example}$ evil.example](https://evil.example/x)", " (evil.example)"),
        (r"[\(\text{bank.example}\)evil.example](https://evil.example/x)", " (evil.example)"),
        (r"[evil.example/$\hspace{-9em}x$](https://evil.example/x)", " (evil.example)"),
        ("[![evil.example](x.png)](https://evil.example)", " (evil.example)"),
        ("[evil\\\n.example](https://evil.example)", " (evil.example)"),
        ("[https://bank.example](mailto:bank.example)", " (bank.example)"),
        ("[a@evil.example/b](mailto:a@evil.example)", " (a@evil.example)"),
    ],
)
def test_a_link_shows_its_host(text, mark):
    assert f'</a><span class="link-host">{mark}</span>' in markdown(text)


@pytest.mark.parametrize(
    "text",
    [
        "https://good.example/a?b=c",
        "<https://good.example>",
        "[good.example](https://good.example/a)",
        "[`GOOD.example`/a](https://good.example/a)",
        "[**good.example**](https://good.example)",
        "<a@good.example>",
        "a@good.org",
        "[mailto:A@good.example](mailto:a@good.example)",
        "[a](/b)",
        "[a](#b)",
    ],
)
def test_a_host_that_the_text_shows_is_not_repeated(text):
    assert "<a href=" in markdown(text)
    assert "link-host" not in markdown(text)


def test_the_destination_of_an_invalid_address_is_unknown():
    assert destination_of("http://[") == ""
    assert not shows_destination("", "https://a.example")


def test_a_link_with_a_hidden_character_shows_it():
    assert "\u202e" not in markdown("[a](https://example.com/\u202etxt 'b\u202ec')")


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("![a <b>](https://evil.example/x.png)", "[image: a &lt;b&gt;]"),
        ("![*a* `b`][1]\n\n[1]: x.png", "[image: a b]"),
        ("![](x.png)", "[image]"),
    ],
)
def test_an_image_becomes_its_description(text, html):
    assert markdown(text) == f'<p><span class="blocked-image">{html}</span></p>\n'


@override_settings(CHATMEMORY={"IMAGE_ORIGINS": ["https://images.example", "http://b.example:81"]})
@pytest.mark.parametrize("url", ["https://images.example/a.png", "http://B.example:81/a?b"])
def test_an_image_of_an_allowed_origin_is_shown_and_gets_no_referrer(url):
    assert markdown(f"![a]({url} 'b')") == (
        f'<p><img src="{url}" alt="a" title="b" loading="lazy" referrerpolicy="no-referrer"></p>\n'
    )


@override_settings(CHATMEMORY={"IMAGE_ORIGINS": ["https://images.example", "http://b.example:81"]})
@pytest.mark.parametrize(
    "url",
    [
        *("http://images.example/a.png", "https://images.example:444/a.png", "//images.example/a"),
        *("https://images.example.evil.example/a", "https://images.example@evil.example/a"),
        *("/a.png", "a.png", "http://b.example/a", f"https://{ELSEWHERE}/a"),
    ],
)
def test_an_image_of_another_origin_is_not_shown(url):
    assert "<img" not in markdown(f"![a]({url})")


def test_the_cached_html_of_a_text_depends_on_the_allowed_origins():
    text = "![cached](https://images.example/a.png)"
    assert "<img" not in markdown(text)
    with override_settings(CHATMEMORY={"IMAGE_ORIGINS": [ORIGIN]}):
        assert "<img" in markdown(text)
    assert "<img" not in markdown(text)
