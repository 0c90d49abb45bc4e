"""Generates docs/reference/customizing.md from the stylesheets, base template and scripts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILES = ROOT / "chatmemory/static/chatmemory"
TEMPLATE = ROOT / "chatmemory/templates/chatmemory/base.html"

INTRO = """# Customizing

The custom properties, template blocks, attributes, events and methods that your pages may use.
These names are stable. Names of classes and of other templates are not: they can change in any
release.
`python docs/generate/customizing_page.py` generates this page from the code.
"""

PROPERTIES_INTRO = """## Custom properties

Set them on `:root` for the [chat pages](../howto/appearance.md#your-stylesheet), and on
`chat-memory` for the [widget](../howto/widget.md). The first color of `light-dark()` is for the
light scheme.

| property | what it is for | default |
| --- | --- | --- |
"""

PROPERTIES: Mapping[str, str] = {
    "--cm-ground": "background of the page and of the messages",
    "--cm-shade": "background of the list of chats, and of pages without a chat",
    "--cm-raised": "background of boxes above the page: text boxes, menus, cards",
    "--cm-line": "borders and disabled buttons",
    "--cm-text": "text",
    "--cm-soft": "less important text: times, notes, placeholders, icons",
    "--cm-accent": "links, main buttons, focus rings, the logo",
    "--cm-on-accent": "text and icons on `--cm-accent`",
    "--cm-user-bubble": "background of the user's messages",
    "--cm-code": "background of code, table headings and results of tools",
    "--cm-bad": "text of errors, and on `--cm-bad-ground`",
    "--cm-bad-ground": "background of errors",
    "--cm-warn-ground": "background of notices about the connection or the chat",
    "--cm-warn-text": "text on `--cm-warn-ground`",
    "--cm-code-comment": "comments in code, on `--cm-code`",
    "--cm-code-keyword": "keywords in code",
    "--cm-code-name": "names of functions and classes in code",
    "--cm-code-number": "numbers in code",
    "--cm-code-string": "strings and inserted lines in code",
    "--cm-shadow": "shadow of raised boxes, as `box-shadow`",
    "--cm-lane": "maximum width of the messages",
    "--cm-font": "font of the text",
    "--cm-mono": "font of code",
    "--cm-inset": "place of a widget's button, as `inset`",
    "--cm-panel-inset": "place of a widget's panel, as `inset`",
    "--cm-layer": "`z-index` of a widget's button",
}

BLOCKS_INTRO = """## Template blocks

Of the package's `base.html`, which [your template](../howto/appearance.md#your-stylesheet) extends.

| block | content |
| --- | --- |
"""

BLOCKS: Mapping[str, str] = {
    "title": "the title of the page",
    "icon": "the icon of the tab",
    "style": "the stylesheet of a page",
    "head": "the scripts of a page",
    "extrahead": "empty, for your stylesheets and scripts",
    "body_class": "classes of the body",
    "brand": "logo and name, a link to a new chat",
    "brand_name": "the name beside the logo",
    "nav": "the menu of the account: the next three blocks, *All chats*, *Your data*, *Keyboard "
    "shortcuts*, the admin and *Sign out*",
    "user_name": "the text of the user (`__str__`); replace it by `{{ user.email }}` for logins by "
    "e-mail",
    "scheme": "the switch of the color scheme",
    "links": "empty, for your links in this menu",
    "side": "below the header; beside a chat, the list of chats",
    "main": "the element `main`",
    "content": "what is in `main`",
}

ATTRIBUTES_INTRO = """## The element `<chat-memory>`

[The widget](../howto/widget.md) describes how to use it.

### Attributes

Only `open` may change later. The chat page uses the last three.

| attribute | meaning |
| --- | --- |
"""

ATTRIBUTES: Mapping[str, str] = {
    "url": "the address of a session's websocket",
    "sockets": "instead of `url`: the address of websockets without a key; the browser chooses and "
    "keeps the key",
    "api": "the address of the REST API, for visitors and rendered Markdown",
    "page": "the address of the session's page, for rendered Markdown and long messages; without "
    "it and `api` stored replies are plain text",
    "person": "the primary key of the user: the unsent messages of two users are stored "
    "separately, and if another one has signed in meanwhile, nothing is sent, and the person is "
    "offered the login",
    "csrf": "Django's CSRF token, if scripts cannot read its cookie",
    "embed": "the public key of [another site](../howto/embed.md)",
    "adopt": "ask a user who signed in whether the chats of this browser's visitor should move; "
    "set it for users who have a visitor's cookie",
    "login": "where *Sign in* leads; by default it reloads the page",
    "signed-out": "the person has to sign in first: there is no text box and no connection",
    "create": "with `url`: the first message creates the session if it does not exist; only a "
    "version-4 UUID can be a new key",
    "mode": "`button`: a button in the corner of the window opens the chat in a panel; the first "
    "time it connects",
    "label": "the text of the button and the heading of the panel",
    "open": "the panel is open; it changes with the panel",
    "color-scheme": "`light`, `dark`, or `system` for that of the browser; by default that of the "
    "page",
    "details": "show what an operator has to fix",
    "autofocus": "focus the text box at load, except on touch screens",
    "page-title": "set the title of the page, and the text of each node with `data-cm-title`, to "
    "that of the session",
    "light": "draw in the page itself, which must load `element/chat.css` and have the class "
    "`cm-page` on its body",
}

EVENTS_INTRO = """### Events

They bubble, and cross the shadow root.

| event | `detail` | when |
| --- | --- | --- |
"""

EVENTS: Mapping[str, tuple[str, str]] = {
    "chatmemory:ready": ("", "the element is drawn, and has its `client`"),
    "chatmemory:state": (
        "`state`",
        "the connection is `connecting`, `live`, `waiting` for the next attempt, `ended` or `idle`",
    ),
    "chatmemory:message": (
        "`seq`, `role`, `status`, `text`",
        "a message was stored, after the first ones were loaded",
    ),
    "chatmemory:title": (
        "`title`",
        "the session has another title; without one, the first words of its first message",
    ),
    "chatmemory:toggle": ("`open`", "the panel was opened or closed"),
}

METHODS_INTRO = """### Methods and properties

| name | effect |
| --- | --- |
"""

CLIENT_INTRO = """## Events of `ChatMemoryClient`

Of the [client](../howto/client-js.md), which `client` of the element is.

| event | `detail` | when |
| --- | --- | --- |
"""

CLIENT_EVENTS: Mapping[str, tuple[str, str]] = {
    "change": (
        "",
        "one of the [properties](../howto/client-js.md#properties) has changed; a streamed text "
        "that grows emits only `text`, and its HTML only `block`",
    ),
    "text": (
        "`key`, `piece`",
        "a streamed text has grown; `piece` is null if the whole text is new",
    ),
    "block": ("`key`", "the `html` of a streamed text has grown"),
    "state": ("", "the state of the connection has changed"),
    "reset": (
        "`reason`, `lost`",
        "the history was replaced: cleared, restored, or too far behind; `lost` is that of the "
        "properties",
    ),
    "synced": ("", "everything that was missed has arrived"),
}


def page() -> str:
    """Return the page as Markdown. Raises LookupError for a name that is not described."""
    _check("custom properties", PROPERTIES, properties())
    _check("blocks", BLOCKS, set(blocks()))
    _check("attributes", ATTRIBUTES, attributes())
    _check("events", EVENTS, events())
    _check("events of the client", CLIENT_EVENTS, client_events())
    defaults = properties()
    return "\n".join(
        [
            INTRO,
            PROPERTIES_INTRO
            + "".join(
                f"| `{name}` | {text} | `{defaults[name]}` |\n" for name, text in PROPERTIES.items()
            ),
            BLOCKS_INTRO + "".join(f"| `{name}` | {BLOCKS[name]} |\n" for name in blocks()),
            ATTRIBUTES_INTRO
            + "".join(f"| `{name}` | {text} |\n" for name, text in ATTRIBUTES.items()),
            EVENTS_INTRO + _table(EVENTS),
            METHODS_INTRO + "".join(f"| `{name}` | {text} |\n" for name, text in methods()),
            CLIENT_INTRO + _table(CLIENT_EVENTS),
        ]
    )


def _check(what: str, described: Mapping[str, object], found: Mapping[str, str] | set[str]) -> None:
    if wrong := set(described) ^ set(found):
        message = f"{what} without a description, or described without being there: {wrong}"
        raise LookupError(message)


def _table(rows: Mapping[str, tuple[str, str]]) -> str:
    return "".join(f"| `{name}` | {detail} | {text} |\n" for name, (detail, text) in rows.items())


def properties() -> dict[str, str]:
    """Return the properties that the stylesheets of the chat use, with their defaults."""
    styles = "\n".join(
        file.read_text(encoding="utf-8")
        for file in sorted(FILES.rglob("*.css"))
        if file.parent.name != "admin"
    )
    used = re.findall(r"var\((--cm-[\w-]+)(?:, ([^)]+))?\)", styles)
    # Of a property with several fallbacks, the first is for left to right.
    fallbacks = {name: default for name, default in reversed(used) if default}
    defined = dict(re.findall(r"^  (--cm-[\w-]+): (.+);", styles, re.MULTILINE))
    return {name: defined.get(name) or fallbacks[name] for name, _ in used}


def blocks() -> list[str]:
    """Return the blocks of the template of all chat pages, in their order."""
    return re.findall(r"{% block (\w+)", TEMPLATE.read_text(encoding="utf-8"))


def attributes() -> set[str]:
    """Return the attributes that scripts and stylesheets read from the element."""
    scripts = _scripts("element", "widget")
    read = r"\b(?:element|this|chat|target)\.(?:get|has)Attribute\(\"([\w-]+)\""
    # access.js has a function for it.
    names = {*re.findall(read, scripts), *re.findall(r'(?<![\w.])get\("([\w-]+)"\)', scripts)}
    styles = (FILES / "widget/widget.css").read_text(encoding="utf-8")
    return (names | {*re.findall(r":host\(\[([\w-]+)", styles)}) - {"hidden"}  # of HTML


def events() -> set[str]:
    """Return the events that the element emits."""
    scripts = _scripts("element", "widget")
    named = re.findall(r'new CustomEvent\("(chatmemory:\w+)"', scripts)
    return {*named, *(f"chatmemory:{n}" for n in re.findall(r'#announce\("(\w+)"', scripts))}


def client_events() -> set[str]:
    """Return the events that the client of the websocket emits."""
    script = (FILES / "client/chatmemory-client.js").read_text(encoding="utf-8")
    return {*re.findall(r'this\.dispatchEvent\(new (?:Custom)?Event\("(\w+)"', script)}


def methods() -> Iterator[tuple[str, str]]:
    """Yield the documented methods and properties of the element, with their descriptions."""
    script = (FILES / "element/chat.js").read_text(encoding="utf-8")
    found = re.findall(r"/\*\* ([^@]+?) \*/\n  (?:get )?(\w+\(\)) {", script)
    for text, name in found:
        is_property = f"get {name}" in script
        yield name.removesuffix("()") if is_property else name, text


def _scripts(*folders: str) -> str:
    return "\n".join(
        file.read_text(encoding="utf-8")
        for folder in folders
        for file in sorted((FILES / folder).glob("*.js"))
    )


if __name__ == "__main__":
    (ROOT / "docs/reference/customizing.md").write_text(page(), encoding="utf-8")
