"""The allow-list of tags, attributes, classes and addresses of rendered HTML."""

from __future__ import annotations

import re
from functools import lru_cache

import nh3

from chatmemory.rendering import highlighting, links, mathml, scrolling

TAGS = {
    *("a", "blockquote", "br", "code", "del", "div", "em", "h1", "h2", "h3", "h4", "h5", "h6"),
    *("hr", "li", "ol", "p", "pre", "section", "span", "strong", "sup", "table", "tbody", "td"),
    *("th", "thead", "tr", "ul"),
    *mathml.TAGS,
}
IMAGE_TAGS = {"img"}
ATTRIBUTES = {
    "a": {"class", "href", "id", "target", "title"},
    "code": {"class"},
    "div": {"class", *scrolling.ATTRIBUTES},
    "img": {"alt", "loading", "referrerpolicy", "src", "title"},
    "li": {"class", "id"},
    "ol": {"class", "start"},
    "p": {"class"},
    "pre": scrolling.ATTRIBUTES,
    "section": {"class"},
    "span": {"class"},
    "sup": {"class"},
    "td": {"class"},
    "th": {"class"},
    "ul": {"class"},
    **mathml.ATTRIBUTES,
}
CLASSES = {
    *("align-center", "align-left", "align-right", "blocked-image", "definition", "footnote-back"),
    *("contains-task-list", "footnote-ref", "footnotes", "link-host", "math", "task-list-item"),
    *("table-scroll", "task-checkbox"),
    *highlighting.CLASSES,
}
LANGUAGE = re.compile(r"language-[^ \t\n\f\r]+")
ID = re.compile(r"[A-Za-z0-9_-]*fn(?:ref)?[0-9]+(?:-[0-9]+)?")


def cleaned(html: str, image_origins: tuple[str, ...]) -> str:
    """Return the HTML without what is not on the allow-list, images of other origins included."""
    return _cleaner(image_origins).clean(html)


@lru_cache(maxsize=8)
def _cleaner(image_origins: tuple[str, ...]) -> nh3.Cleaner:
    def filtered(tag: str, name: str, value: str) -> str | None:
        if name in scrolling.ATTRIBUTES:
            return value if scrolling.is_allowed(name, value) else None
        if tag in mathml.TAGS and name != "class":
            return value if mathml.is_allowed(name, value) else None
        is_allowed = {
            "class": value in CLASSES or (tag == "code" and LANGUAGE.fullmatch(value)),
            "id": ID.fullmatch(value),
            "src": links.is_allowed_image(value, image_origins),
            "target": value == "_blank",
        }
        return value if is_allowed.get(name, True) else None

    return nh3.Cleaner(
        tags=TAGS | IMAGE_TAGS if image_origins else TAGS,
        attributes=ATTRIBUTES,
        attribute_filter=filtered,
        link_rel=links.REL,
        url_schemes=links.SCHEMES,
    )
