"""Markdown while it is streamed: a finished block keeps its node and its place."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from chatmemory.rendering.markdown import MarkdownStream, markdown
from tests.pages import test_browser, test_chat_js
from tests.pages.test_chat_js import row, running
from tests.rendering import test_tables

pytestmark = [pytest.mark.browser, pytest.mark.slow]

kept, server, login = test_browser.kept, test_browser.server, test_browser.login
browser, desk = test_browser.browser, test_browser.desk
page, scripted = test_chat_js.page, test_chat_js.scripted

REPLY = """# A plan 😀

Some *words*, `code` and a [link](https://example.org/a).

| word | number |
|---|--:|
| one | 1 |
| two | 2 |

- first
- second
  - nested

> quoted **text**

```python
def double(number: int) -> int:
    \"\"\"A docstring.\"\"\"

    return 2 * number
```

1. one
2. two

$$
x^2
$$

Unknown <b>tags</b>
and a line.

The end."""

WATCH = """() => {
  const places = new Map();
  globalThis.faults = [];
  const isBlock = (node) => node.isConnected && node.localName !== "tr";
  globalThis.blocks = () => [...places.keys()].filter(isBlock).length;
  const isOpen = (node) =>
    node.matches(".table-scroll, .cm-code:has(pre:not([role]))") &&
    node.nextElementSibling?.matches(".cm-rest");
  const check = () => {
    for (const [node] of places) {
      if (!node.isConnected) faults.push(`removed: ${node.outerHTML.slice(0, 90)}`);
      if (!node.isConnected) places.delete(node);
    }
    const rows = ".cm-assistant tbody:not(.cm-open) > tr";
    const blocks = ".cm-assistant .cm-rich > :not(.cm-rest)";
    for (const node of document.querySelectorAll(`${blocks}, ${rows}`)) {
      if (isOpen(node)) continue;
      const box = node.getBoundingClientRect();
      const place = [box.top - node.closest(".cm-rich").getBoundingClientRect().top, box.height];
      const known = places.get(node) ?? place;
      if (place.some((pixels, index) => Math.abs(pixels - known[index]) > 0.5)) {
        faults.push(`moved: ${known}, ${place}: ${node.outerHTML.slice(0, 90)}`);
      }
      places.set(node, place);
    }
  };
  const all = {childList: true, subtree: true, characterData: true};
  new MutationObserver(check).observe(document.querySelector(".cm-log"), all);
}"""
"""Record blocks and rows of tables that are removed, or whose place or height changes."""

HTML_OF_REPLY = """() =>
  [...document.querySelectorAll(".cm-assistant .cm-text > *")].map((node) => node.outerHTML)"""


def watch(chat):
    chat.page.evaluate(WATCH)


def faults_of(chat):
    return chat.page.evaluate("faults")


def shown_html(chat):
    return chat.page.evaluate(HTML_OF_REPLY)


def expect_end(chat):
    expect(chat.page.locator(".cm-assistant[data-html]")).to_have_count(1)
    expect(chat.page.locator("[aria-busy], .cm-rest")).to_have_count(0)


def expect_stored_html(desk, chat):
    """The page shows what another one shows that loads the stored reply."""
    expect_end(chat)
    other = desk.open(chat.page.url.split("/")[-2])
    assert shown_html(chat) == shown_html(other)
    assert len(shown_html(chat)) > 1


@pytest.mark.long
@pytest.mark.django_db(transaction=True)
def test_blocks_keep_their_nodes_to_the_end_also_in_a_tab_that_joins_or_reconnects(desk):
    chat = desk.open()
    requests = []
    chat.page.on("request", lambda request: requests.append(request.url))
    watch(chat)
    text = "\n\n".join([REPLY] * 6)  # it lasts until the other tab is open
    chat.send(f"slowly {text}")
    expect(chat.page.locator(".cm-rich table").first).to_be_visible()
    other = desk.open(chat.page.url.split("/")[-2])
    watch(other)
    expect(other.page.locator(".cm-rich table").first).to_be_visible()
    assert other.page.locator("[aria-busy]").count() == 1
    chat.client("client.close()")
    chat.client("client.connect()")
    for tab in (chat, other):
        expect_stored_html(desk, tab)
        assert faults_of(tab) == []
        assert tab.page.evaluate("blocks()") == len(shown_html(tab))
    assert not any("html/" in url for url in requests)


@pytest.mark.firefox
@pytest.mark.django_db(transaction=True)
def test_a_stopped_reply_keeps_its_blocks(desk):
    chat = desk.open()
    watch(chat)
    chat.send(f"slowly {REPLY}\n\n{'and more ' * 1_000}")
    expect(chat.page.locator(".cm-rich table")).to_be_visible()
    chat.stop.click()
    expect(chat.page.locator(".cm-interrupted")).to_be_visible()
    expect_stored_html(desk, chat)
    assert faults_of(chat) == []


@pytest.mark.django_db(transaction=True)
def test_only_a_block_that_a_later_footnote_changes_is_replaced(desk):
    chat = desk.open()
    watch(chat)
    chat.send("slowly # a\n\nb[^1]\n\n*c*\n\n[^1]: d")
    expect_stored_html(desk, chat)
    faults = faults_of(chat)
    assert len(faults) <= 1  # none if the block was not drawn before its footnote came
    assert all(fault.startswith("removed: <p>b[^1]</p>") for fault in faults)
    expect(chat.page.locator(".cm-rich sup a")).to_have_attribute("href", re.compile("^#m2-fn"))


@pytest.mark.long
@pytest.mark.django_db(transaction=True)
def test_another_answer_and_feedback_do_not_replace_blocks(desk):
    chat = desk.open()
    watch(chat)
    chat.send("slowly # a\n\n- b\n\n*c*")
    expect_end(chat)
    chat.client("client.feedback(client.rows.get(2).turn, 1)")
    expect(chat.page.locator("[data-seq='2']:not([data-revision='0'])")).to_be_visible()
    assert faults_of(chat) == []
    chat.tool(2, "Answer again").click()
    expect(chat.page.locator("[data-seq='4'][data-html]")).to_be_visible()
    assert [fault[:7] for fault in faults_of(chat)] == ["removed"] * 3  # of the first answer


@pytest.mark.firefox
@pytest.mark.django_db(transaction=True)
def test_feedback_keeps_the_blocks_that_the_page_came_with(desk):
    chat = desk.open()
    chat.send("# a\n\n*b*")
    expect_end(chat)
    requests = []
    chat.page.on("request", lambda request: requests.append(request.url))
    chat.page.reload()
    chat.expect_live()
    chat.page.evaluate("globalThis.heading = document.querySelector('.cm-rich h1')")
    chat.client("client.feedback(client.rows.get(2).turn, 1)")
    expect(chat.page.locator("[data-seq='2'][data-html]:not([data-revision='0'])")).to_be_visible()
    assert chat.page.evaluate("heading.isConnected")
    assert not any("html/" in url for url in requests)


# A server that the test scripts

STEP = {"turn": "t", "step": 0}


def stream(script, text, *ends):
    """Send a text as a snapshot, and its blocks up to each of these positions."""
    script.emit("snapshot", **STEP, text=text)
    begin = 0
    for end in ends:
        script.emit("block", **STEP, start=begin, end=end, html=markdown(text[begin:end]))
        begin = end


def test_the_rest_of_a_text_is_shown_as_text(scripted):
    script, chat = scripted
    assert script.welcome(running=running("t"))["html"] == ""
    stream(script, "# 😀\n\n\n*b*", 4)
    box, rest = chat.page.locator(".cm-text"), chat.page.locator(".cm-rest")
    expect(box.locator("h1")).to_have_text("😀")
    expect(rest).to_have_text("*b*")
    assert rest.evaluate("node => node.firstChild.data") == "*b*"
    script.emit("delta", **STEP, text=" <b>\n\n```py\n1")
    script.emit("block", **STEP, start=4, end=14, html="<p>*b*</p>")
    expect(box.locator(".cm-code-head span")).to_have_text("py")
    expect(box.locator("pre")).to_have_text("1")
    expect(rest).to_have_text("")
    script.emit("block", **STEP, start=4, end=99, html="<p>late</p>")  # it follows no block
    script.emit("message", **row(1, "other", turn="t", step=0, role="assistant"))
    box = chat.page.locator("[data-seq='1'] .cm-text")
    expect(box).to_have_text("other")
    expect(box).not_to_have_class(re.compile("cm-rich"))


DOT = "node => getComputedStyle(node, '::after').animationName"


@pytest.mark.long
def test_the_dot_pulses_only_while_no_text_arrives(scripted):
    script, chat = scripted
    script.welcome(running=running("t"))
    stream(script, "a")
    rest = chat.page.locator(".cm-rest")
    expect(rest).to_have_text("a")
    assert rest.evaluate(DOT) == "none"
    expect(rest).to_have_class("cm-rest cm-paused")
    assert rest.evaluate(DOT) == "cm-pulse"
    script.emit("delta", **STEP, text="b")
    expect(rest).to_have_text("ab")
    expect(rest).to_have_class("cm-rest")


@pytest.mark.parametrize(("motion", "count"), [("reduce", 0), ("no-preference", 1)])
def test_nothing_pulses_with_reduced_motion(scripted, motion, count):
    script, chat = scripted
    chat.page.emulate_media(reduced_motion=motion)
    script.welcome(running=running("t"))
    expect(chat.page.get_by_text("Thinking…")).to_be_visible()
    chat.expect_live()
    names = "document.getAnimations().map(({animationName}) => animationName)"
    assert chat.page.evaluate(names) == ["cm-pulse"] * count


@pytest.mark.firefox
def test_a_reconnect_keeps_blocks_of_the_same_text_and_drops_others(scripted):
    script, chat = scripted
    script.welcome(running=running("t"))
    watch(chat)
    stream(script, "# a\n# b\n# c\n", 4, 12)
    headings = chat.page.locator(".cm-rich h1")
    expect(headings).to_have_text(["a", "b", "c"])
    script.sockets[-1].close(code=4503)
    script.welcome(running=running("t"))
    script.emit("snapshot", **STEP, text="# a\n")
    script.emit("delta", **STEP, text="# b\n# c\n# d")
    expect(headings).to_have_text(["a", "b", "c"])
    expect(chat.page.locator(".cm-rest")).to_have_text("# d")
    stream(script, "# a\n# b\n# c\n# d\n", 4, 8, 16)
    expect(headings).to_have_text(["a", "b", "c", "d"])
    assert chat.page.evaluate("faults") == []
    stream(script, "# x\n# y", 4)
    expect(headings).to_have_text(["x"])
    expect(chat.page.locator(".cm-rest")).to_have_text("# y")


@pytest.mark.long
def test_after_a_reset_the_blocks_are_shown_again(scripted):
    script, chat = scripted
    script.welcome(running=running("t"))
    for text in ("# a\n# b", "# a\n# b", "# c\n# d"):
        stream(script, text, 4)
        expect(chat.page.locator(".cm-rich > *")).to_have_text([text[2], text[4:]])
        script.emit("reset", reason="behind", epoch=7, lost=0)
        script.session(running=running("t"))
        script.emit("synced", cursor="c2")


@pytest.mark.long
def test_a_last_block_may_come_before_its_text(scripted):
    script, chat = scripted
    script.welcome(running=running("t"))
    watch(chat)
    stream(script, "# a\nb", 4)
    expect(chat.page.locator(".cm-rich h1")).to_be_visible()
    script.emit("block", **STEP, start=4, end=9, html="<p>b *c*</p>", last=True)
    script.emit("message", **row(1, "# a\nb *c*", turn="t", step=0, role="assistant"))
    script.session(last_seq=1, revision=1)
    expect_end(chat)
    expect(chat.page.locator(".cm-text")).to_have_text("ab *c*")
    assert chat.page.evaluate("faults") == []


def test_code_has_its_language_and_buttons_to_wrap_and_copy_it(scripted):
    script, chat = scripted
    script.welcome(running=running("t"))
    chat.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    code = f"```rust\nfn main() {{ {'x' * 300} }}\n```\n"
    stream(script, code, len(code))
    block = chat.page.locator(".cm-code pre")
    expect(chat.page.locator(".cm-code-head span")).to_have_text("rust")
    is_wide = "node => node.scrollWidth > node.clientWidth"
    assert block.evaluate(is_wide)
    block.focus()
    chat.page.keyboard.press("ArrowRight")
    chat.page.wait_for_function("document.activeElement.scrollLeft > 0")
    wrap = chat.page.get_by_role("button", name="Wrap")
    wrap.click()
    expect(wrap).to_have_attribute("aria-pressed", "true")
    assert not block.evaluate(is_wide)
    chat.page.get_by_role("button", name="Copy", exact=True).click()
    expect(chat.page.get_by_role("button", name="Copied")).to_be_visible()


@pytest.mark.parametrize(
    ("text", "language", "code", "rest"),
    [
        ("```", None, "", ""),
        ("```pyth", None, "", ""),
        ("```python\n", "python", "", ""),
        ("```python title\npri", "python", "pri", ""),
        ("~~~ rust\na\n``", "rust", "a ``", ""),
        ("````\na\n```\nb", "", "a ``` b", ""),
        ("  ```\n  a\n    b\nc", "", "a b c", ""),
        ("```py\na\n``", "py", "a", ""),
        ("```py\na\n```", "py", "a", ""),
        ("```py\na\n```\nb *c*", "py", "a", "b *c*"),  # the server renders no more of the text
        ("`` `a` ``", None, "", "`` `a` ``"),
        ("```a``` b\nc", None, "", "```a``` b c"),
    ],
)
def test_code_is_drawn_from_its_first_line_on(scripted, text, language, code, rest):
    script, chat = scripted
    script.welcome(running=running("t"))
    stream(script, f"# a\n{text[:2]}", 4)
    expect(chat.page.locator(".cm-rich h1")).to_be_visible()
    script.emit("delta", **STEP, text=text[2:])
    expect(chat.page.locator(".cm-rest")).to_have_text(rest)
    expect(chat.page.locator("pre")).to_have_text([] if language is None else [code])
    expect(chat.page.locator(".cm-code-head span")).to_have_text(
        [] if language is None else [language]
    )


def test_a_last_line_of_code_that_could_have_closed_it_is_shown_at_the_end(scripted):
    script, chat = scripted
    script.welcome(running=running("t"))
    text = "# a\n```py\na\n``"
    stream(script, text, 4)
    expect(chat.page.locator("pre")).to_have_text("a")
    about = {"turn": "t", "step": 0, "role": "assistant", "status": "interrupted"}
    script.emit("message", **row(2, text, **about))
    script.session(last_seq=2, revision=1)
    expect(chat.page.locator("pre")).to_have_text("a ``")


@pytest.mark.firefox
def test_finished_code_keeps_the_frame_with_its_focus_its_wrap_and_its_selection(scripted):
    script, chat = scripted
    script.welcome(running=running("t"))
    watch(chat)
    code = "```python\nx = 1\n"
    stream(script, code)
    wrap = chat.page.get_by_role("button", name="Wrap")
    wrap.click()
    chat.page.evaluate("getSelection().selectAllChildren(document.querySelector('code'))")
    script.emit("delta", **STEP, text="y = 2\n")
    expect(chat.page.locator("pre")).to_have_text("x = 1 y = 2")
    assert chat.page.evaluate("String(getSelection())").startswith("x = 1")
    code += "y = 2\n```\n"
    script.emit("delta", **STEP, text="```\n")
    script.emit("block", **STEP, start=0, end=len(code), html=markdown(code))
    expect(chat.page.locator(".hl-number")).to_have_count(2)
    expect(wrap).to_be_focused()
    expect(wrap).to_have_attribute("aria-pressed", "true")
    expect(chat.page.locator("pre")).to_have_class("cm-wrapped")
    wrap.click()
    expect(chat.page.get_by_role("group", name="Code")).to_have_count(1)
    finish_at(script, code)
    expect_end(chat)
    assert faults_of(chat) == []


def finish_at(script, text):
    """Store a reply whose blocks were all sent."""
    script.emit("block", **STEP, start=len(text), end=len(text), html="", last=True)
    script.emit("message", **row(2, text, turn="t", step=0, role="assistant"))
    script.session(last_seq=2, revision=1)


# Tables, formulas and code while they are streamed

EVERYTHING = test_tables.EVERYTHING

SHIFTS = """() => {
  globalThis.shifted = [];
  const isWritten = (node) => {
    const block = node.closest(".cm-assistant .cm-rich > *");
    // The block that is written: the open text, and a table that has grown or has just ended.
    return block?.matches(".cm-rest, .table-scroll") || node.matches(".cm-assistant, .cm-text");
  };
  const observer = new PerformanceObserver((list) => {
    for (const {sources} of list.getEntries()) {
      for (const {node, previousRect, currentRect} of sources) {
        const element = node?.nodeType === Node.TEXT_NODE ? node.parentElement : node;
        if (!element || isWritten(element)) continue;
        shifted.push([element.outerHTML.slice(0, 90), previousRect.toJSON(), currentRect.toJSON()]);
      }
    }
  });
  observer.observe({type: "layout-shift"});
  globalThis.takeShifts = () => {
    observer.takeRecords();
    return shifted;
  };
}"""
"""Record what the browser moves outside the block that is written."""

MOVED_LINES = """() => {
  const lines = new Map();
  globalThis.movedLines = [];
  const check = () => {
    const box = document.querySelector(".cm-assistant pre");
    if (!box) return;
    const walker = document.createTreeWalker(box, NodeFilter.SHOW_TEXT);
    const top = box.closest(".cm-rich").getBoundingClientRect().top;
    for (let text = walker.nextNode(); text; text = walker.nextNode()) {
      for (const match of text.data.matchAll(/f(\\d+)\\(/g)) {
        const range = new Range();
        range.setStart(text, match.index);
        range.setEnd(text, match.index + match[0].length);
        const {left, top: y} = range.getBoundingClientRect();
        const place = [left, y - top];
        const known = lines.get(match[1]) ?? place;
        if (place.some((pixels, index) => Math.abs(pixels - known[index]) > 0.5)) {
          movedLines.push([match[0], known, place]);
        }
        lines.set(match[1], place);
      }
    }
  };
  const all = {childList: true, subtree: true, characterData: true};
  new MutationObserver(check).observe(document.querySelector(".cm-log"), all);
}"""
"""Record lines of code, each named by its function, that move."""


def write(script, text, *, piece=9, wait=20):
    """Stream a text in pieces, with its blocks; return the stream, and where they end."""
    stream, closed = MarkdownStream(prefix="live-"), 0
    for begin in range(0, len(text), piece):
        part = text[begin : begin + piece]
        script.emit("delta" if begin else "snapshot", **STEP, text=part)
        if html := "".join(stream.feed(part)):
            script.emit("block", **STEP, start=closed, end=stream.closed_chars, html=html)
            closed = stream.closed_chars
        script.page.wait_for_timeout(wait)
    return stream, closed


def finish(script, text, stream, closed):
    html = "".join(stream.close())
    script.emit("block", **STEP, start=closed, end=len(text), html=html, last=True)
    script.emit("message", **row(2, text, turn="t", step=0, role="assistant"))
    script.session(last_seq=2, revision=1)


TABLES = """html => {
  const tables = (root) => [...root.querySelectorAll("table")].map((table) => table.outerHTML);
  return [tables(document), tables(new DOMParser().parseFromString(html, "text/html"))];
}"""


def expect_stored_tables(chat, text):
    shown, stored = chat.page.evaluate(TABLES, markdown(text))
    assert shown == stored


@pytest.mark.long
@pytest.mark.firefox
@pytest.mark.parametrize("width", [1280, 390])
def test_while_a_reply_is_written_nothing_moves_but_the_block_being_written(scripted, width):
    script, chat = scripted
    chat.page.set_viewport_size({"width": width, "height": 1_000})
    script.welcome(row(1, "A question"), running=running("t"))
    chat.expect_live()
    watch(chat)
    chat.page.evaluate(SHIFTS)
    chat.page.evaluate(MOVED_LINES)
    stream, closed = write(script, EVERYTHING)
    finish(script, EVERYTHING, stream, closed)
    expect(chat.page.locator(".cm-rest")).to_have_count(0)
    chat.page.wait_for_timeout(200)
    assert chat.page.evaluate("takeShifts()") == []
    assert chat.page.evaluate("movedLines") == []
    # In a narrow window, a longer row can wrap the cells of the rows before it.
    assert [fault for fault in faults_of(chat) if width > 390 or "<tr>" not in fault] == []
    expect_stored_tables(chat, EVERYTHING)


TABLE = "a\n\n| b | c |\n|---|--:|\n| *d* | 1 |\n| e \\| f | 2 |\n"


@pytest.mark.firefox
def test_rows_are_appended_and_the_row_that_is_written_is_shown_in_its_cells(scripted):
    script, chat = scripted
    script.welcome(running=running("t"))
    watch(chat)
    text = f"{TABLE}| g \\| `h"
    stream, closed = write(script, text)
    cells = chat.page.locator(".cm-rich td")
    expect(cells).to_have_text(["d", "1", "e | f", "2", "g | `h", ""])
    expect(chat.page.locator(".cm-open td")).to_have_text(["g | `h", ""])
    expect(chat.page.locator(".cm-rest")).to_have_text("")
    script.emit("delta", **STEP, text="` | 3 |\n\n*i")
    html = "".join(stream.feed("` | 3 |\n\n*i"))
    expect(cells).to_have_text(["d", "1", "e | f", "2", "g | `h`", "3"])  # before its HTML
    script.emit("block", **STEP, start=closed, end=stream.closed_chars, html=html)
    expect(chat.page.locator(".cm-rest")).to_have_text("*i")
    expect(chat.page.locator(".cm-open")).to_have_count(0)
    expect(cells).to_have_text(["d", "1", "e | f", "2", "g | h", "3"])
    expect_stored_tables(chat, f"{text}` | 3 |\n")
    assert faults_of(chat) == []


def test_rows_without_html_are_drawn_up_to_a_number_of_cells(scripted):
    """The server renders none of a text that is too long, and `|` alone is a whole row."""
    script, chat = scripted
    script.welcome(running=running("t"))
    watch(chat)
    write(script, TABLE)
    script.emit("delta", **STEP, text="|\n" * 1_005)
    expect(chat.page.locator(".cm-open td")).to_have_count(2_000)
    expect(chat.page.locator(".cm-rest")).to_have_text(" ".join(["|"] * 5))
    assert faults_of(chat) == []


@pytest.mark.firefox
@pytest.mark.parametrize("joined", [True, False])
def test_a_reconnect_in_the_middle_of_a_table_keeps_its_rows(scripted, joined):
    script, chat = scripted
    script.welcome(running=running("t"))
    watch(chat)
    write(script, f"{TABLE}| g")
    expect(chat.page.locator(".cm-rich tr")).to_have_count(4)
    script.sockets[-1].close(code=4503)
    script.welcome(running=running("t"))
    text = f"{TABLE}| g | 3 |\n| h | 4 |\n\n# i\n\n| j |\n|---|\n| k |\n| l"
    stream, closed = write(script, text, piece=len(text) if joined else 11)
    expect(chat.page.locator(".cm-open")).to_have_text("l")
    finish(script, text, stream, closed)
    expect_end(chat)
    expect_stored_tables(chat, text)
    assert faults_of(chat) == []


def test_copy_copies_the_source_of_formulas_and_tables(scripted):
    script, chat = scripted
    script.welcome(running=running("t"))
    text = f"{TABLE}\n$$\\frac{{a}}{{b}}$$"
    stream, closed = write(script, text, piece=len(text))
    finish(script, text, stream, closed)
    expect(chat.page.locator("math")).to_have_attribute("alttext", "\\frac{a}{b}")
    chat.page.locator(".cm-copy").click()
    expect(chat.page.get_by_role("button", name="Copied")).to_be_visible()
    box = chat.page.get_by_label("Message", exact=True)
    box.focus()
    chat.page.keyboard.press("Control+V")
    expect(box).to_have_value(text)
