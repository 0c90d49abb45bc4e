"""Markdown while it is streamed: a finished block keeps its node and its place."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from chatmemory.rendering.markdown import markdown
from tests.pages import test_browser, test_chat_js
from tests.pages.test_chat_js import row, running

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
  globalThis.blocks = () => [...places.keys()].filter((node) => node.isConnected).length;
  const check = () => {
    for (const [node] of places) {
      if (!node.isConnected) faults.push(`removed: ${node.outerHTML.slice(0, 90)}`);
      if (!node.isConnected) places.delete(node);
    }
    for (const node of document.querySelectorAll(".cm-assistant .cm-rich > :not(.cm-rest)")) {
      const box = node.getBoundingClientRect();
      const place = [box.top - node.parentNode.getBoundingClientRect().top, box.height];
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
"""Record blocks that are removed, or whose place or height changes."""

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
    expect(rest).to_have_text("```py 1")
    expect(rest).to_have_class(re.compile("cm-rest-code"))
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
