"""An operator who follows the steps of a chapter by the labels of the pages, without addresses."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import unescape
from typing import Any
from urllib.parse import urljoin

from django.test import Client
from django.test.html import Element, parse_html

from tests.handbook.reading import Chapter

Found = tuple[Element, Sequence[Element]]
"""An element of a page, and the elements around it."""


class Visit:
    """A browser without scripts. Each label that it uses must be the next one of the chapter."""

    def __init__(self, chapter: Chapter, client: Client | None = None) -> None:
        self.chapter = chapter
        self.client = client or Client()
        self.open("/admin/")

    def open(self, address: str, **data: Any) -> None:
        """Open a page, of which no label is consumed."""
        self._show(self.client.get(address, data or None, follow=True))

    def click(self, label: str) -> None:
        """Follow the link with this label."""
        self.chapter.label(label)
        self._follow([link for link, _ in self._all("a") if text_of(link) == label], label)

    def follow(self, start: str) -> None:
        """Follow the link whose text starts so, such as that of a session."""
        self._follow([link for link, _ in self._all("a") if text_of(link).startswith(start)], start)

    def _follow(self, links: Sequence[Element], text: str) -> None:
        assert links, f"no link {text!r} on {self.address}"
        self.open(urljoin(self.address, _attributes(links[0])["href"]))

    def see(self, *labels: str) -> None:
        """Find texts on the page."""
        for label in labels:
            self.chapter.label(label)
            assert label in self.text, f"no text {label!r} on {self.address}"

    def fill(self, label: str, value: object) -> None:
        """Fill the field with this label."""
        self.chapter.label(label)
        field = self._field(label)
        self.given[_attributes(field)["name"]] = value

    def tick(self, label: str) -> None:
        """Tick the box with this label."""
        self.fill(label, "on")

    def choose(self, label: str, option: str) -> None:
        """Choose an option, which is a label too, of the field with this label."""
        self.chapter.label(label)
        self.chapter.label(option)
        field = self._field(label)
        [chosen] = [one for one, _ in _walk(field) if text_of(one) == option]
        self.given[_attributes(field)["name"]] = _attributes(chosen)["value"]

    def press(self, label: str) -> None:
        """Press the button with this label."""
        self.chapter.label(label)
        self.submit(label)

    def submit(self, label: str) -> None:
        """Send the form of a button, whose label the chapter does not repeat."""
        found = [one for one in self._all("button", "input") if _button_text(one[0]) == label]
        assert found, f"no button {label!r} on {self.address}"
        button, around = found[0]
        form = next(one for one in reversed(around) if one.name == "form")
        pressed = _attributes(button)
        values = {**_values(form), **self.given}
        if pressed.get("name"):
            values[pressed["name"]] = pressed.get("value", "")
        attributes = _attributes(form)
        address = urljoin(self.address, attributes.get("action", ""))
        send = self.client.post if attributes.get("method") == "post" else self.client.get
        answer = send(address, values)
        if answer.status_code == 302:
            answer = self.client.get(urljoin(address, answer["Location"]), follow=True)
        self._show(answer)

    def is_red(self, label: str) -> bool:
        """Return whether a line of the page of health is marked."""
        marked = [one for one, _ in _walk(self.page) if "chatmemory-bad" in _classes(one)]
        return any(text_of(one).startswith(label) for one in marked)

    def _show(self, answer: Any) -> None:
        assert answer.status_code == 200, answer
        self.answer = answer
        request = answer.request
        query = f"?{request['QUERY_STRING']}" if request["QUERY_STRING"] else ""
        self.address = f"{request['PATH_INFO']}{query}"
        self.given: dict[str, Any] = {}
        if not answer.streaming:
            self.page = parse_html(answer.content.decode())
            self.text = text_of(self.page)

    def _all(self, *names: str) -> list[Found]:
        return [(one, around) for one, around in _walk(self.page) if one.name in names]

    def _field(self, label: str) -> Element:
        """Return the field that a label names, or contains."""
        names = [found for found in self._all("label", "legend") if _own_text(found[0]) == label]
        assert names, f"no field {label!r} on {self.address}"
        name, above = names[0]
        group = above[-1] if name.name == "legend" else name
        pk = _attributes(name).get("for")
        fields = self._all("input", "select", "textarea")
        [field] = [
            one
            for one, around in fields
            if group in around or (pk and _attributes(one).get("id") == pk)
        ]
        return field


def _own_text(label: Element) -> str:
    """Return the text of a label without that of the field in it."""
    return " ".join(part for part in label.children if isinstance(part, str)).strip(": ")


def _walk(element: Element, around: Sequence[Element] = ()) -> Iterator[Found]:
    yield element, around
    for child in element.children:
        if isinstance(child, Element):
            yield from _walk(child, (*around, element))


def _attributes(element: Element) -> dict[str, str]:
    return {name: unescape(value or "") for name, value in element.attributes}


def _classes(element: Element) -> list[str]:
    return _attributes(element).get("class", "").split()


def text_of(element: Element) -> str:
    """Return the text of an element, with single spaces."""
    parts = [text_of(one) if isinstance(one, Element) else one for one in element.children]
    return re.sub(r"\s+", " ", unescape(" ".join(parts))).strip()


def _button_text(element: Element) -> str:
    attributes = _attributes(element)
    if element.name == "input":
        return attributes.get("value", "") if attributes.get("type") == "submit" else ""
    return text_of(element)


def _values(form: Element) -> dict[str, Any]:
    """Return what a browser sends of a form that nobody has filled."""
    values: dict[str, Any] = {}
    for field, _ in _walk(form):
        attributes = _attributes(field)
        name = attributes.get("name")
        if not name:
            continue
        match field.name, attributes.get("type", "text"):
            case "input", "checkbox" | "radio":
                if "checked" in attributes:
                    values.setdefault(name, []).append(attributes.get("value") or "on")
            case "input", kind if kind not in ("submit", "button"):
                values[name] = attributes.get("value", "")
            case "textarea", _:
                values[name] = text_of(field)
            case "select", _:
                options = [one for one, _ in _walk(field) if one.name == "option"]
                chosen = [one for one in options if "selected" in _attributes(one)]
                if "multiple" in attributes:
                    values[name] = [_attributes(one)["value"] for one in chosen]
                elif options:
                    values[name] = _attributes((chosen or options)[0])["value"]
    return values
