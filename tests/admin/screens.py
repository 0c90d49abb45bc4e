"""Pages of the admin in a real browser: what they violate, how they fit, what they offer."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from django.conf import settings
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Locator, Page, Route

from tests.browsers import TIMEOUT_MS

AXE = Path(__file__).parents[1] / "js/node_modules/axe-core/axe.min.js"
POLICY = "default-src 'self'; object-src 'none'; base-uri 'none'; frame-ancestors 'none'"
"""A host's policy, which forbids inline scripts and styles."""
NARROW = {"width": 390, "height": 844}
WIDE = {"width": 1280, "height": 900}

PREPARE = """
const still = new CSSStyleSheet();
still.replaceSync("* { transition: none !important; animation: none !important; }");
addEventListener("DOMContentLoaded", () => { document.adoptedStyleSheets = [still]; });
addEventListener("securitypolicyviolation", (event) => {
  const what = `${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}`;
  console.error(`policy: ${what}:${event.lineNumber} ${event.sample}`);
});
"""

RUN_AXE = """
async ({ rules, within }) => {
  const found = [...document.querySelectorAll(within || "html")];
  const include = found.filter((element) => element.checkVisibility());
  if (!include.length) return [];
  const context = { include, exclude: ["#nav-sidebar"] };
  const options = { resultTypes: ["violations"], elementRef: false, preload: false };
  if (rules.length) options.runOnly = { type: "rule", values: rules };
  const { violations } = await axe.run(context, options);
  return violations
    .filter(({ impact }) => impact === "serious" || impact === "critical")
    .flatMap(({ id, nodes }) =>
      nodes.map(({ html, any }) => `${id}: ${html.slice(0, 160)} ${any[0]?.message ?? ""}`),
    );
}
"""

FIND_WIDE = """
() => {
  const root = document.documentElement;
  const faults = [];
  if (root.scrollWidth > root.clientWidth) {
    const wide = [...document.querySelectorAll("body *")].filter((element) => {
      const box = element.getBoundingClientRect();
      return box.width > 0 && box.right + scrollX > root.clientWidth + 1;
    });
    const names = wide.slice(0, 3).map((element) => element.outerHTML.slice(0, 120));
    faults.push(`the page is ${root.scrollWidth} px wide: ${names}`);
  }
  return faults;
}
"""

FIND_BAD_BUTTONS = """
(selector) => {
  const faults = [];
  const boxes = [];
  const gap = 2;
  for (const button of document.querySelectorAll(selector)) {
    if (!button.checkVisibility()) continue;
    button.scrollIntoView({ behavior: "instant", block: "center", inline: "center" });
    const box = button.getBoundingClientRect();
    const name = button.outerHTML.slice(0, 120);
    if (box.width < 16 || box.height < 16) faults.push(`too small: ${name}`);
    const [x, y] = [box.left + box.width / 2, box.top + box.height / 2];
    const top = document.elementFromPoint(x, y);
    if (!top || !(button.contains(top) || top.contains(button))) faults.push(`covered: ${name}`);
    if (button.scrollWidth > button.clientWidth + 1) faults.push(`cut: ${name}`);
    const [left, right] = [box.left + scrollX, box.right + scrollX];
    const [top_, bottom] = [box.top + scrollY, box.bottom + scrollY];
    const near = boxes.find(
      (other) =>
        left < other.right + gap &&
        right > other.left - gap &&
        top_ < other.bottom &&
        bottom > other.top,
    );
    if (near) faults.push(`not separated from ${near.name}: ${name}`);
    boxes.push({ left, right, top: top_, bottom, name });
  }
  scrollTo(0, 0);
  return faults;
}
"""

BUTTONS = ".chatmemory-button"


class Screens:
    """A tab of a superuser that records what goes wrong in it."""

    def __init__(self, browser: Browser, address: str, cookie: str, policy: str = POLICY) -> None:
        self.address = address
        self.policy = policy
        self.problems: list[str] = []
        self.at = ""
        """The name of the page that is open."""
        self.context = self._context(browser, cookie)
        self.page = self.context.new_page()

    def _context(self, browser: Browser, cookie: str) -> BrowserContext:
        context = browser.new_context(base_url=self.address, viewport=WIDE)  # type: ignore[arg-type]  # a TypedDict
        context.set_default_timeout(TIMEOUT_MS)
        name = settings.SESSION_COOKIE_NAME
        context.add_cookies([{"name": name, "value": cookie, "url": self.address}])
        context.add_init_script(PREPARE)
        context.on("console", self._on_console)
        context.on("weberror", lambda error: self.record(str(error.error)))
        if self.policy:
            context.route(re.compile("/admin/(?!jsi18n)"), self._add_policy)
        context.route("**/favicon.ico", lambda route: route.fulfill(status=204))
        return context

    def _add_policy(self, route: Route) -> None:
        answer = route.fetch(max_redirects=0)
        headers = {**answer.headers, "content-security-policy": self.policy}
        route.fulfill(response=answer, headers=headers)

    def _on_console(self, line: ConsoleMessage) -> None:
        # A theme may load fonts from a CDN, which tests do not reach.
        if line.type == "error" and "ERR_NAME_NOT_RESOLVED" not in line.text:
            self.record(line.text)

    def record(self, problem: str) -> None:
        self.problems.append(f"{self.at}: {problem}")

    def open(self, name: str, path: str) -> Page:
        """Open a page of chatmemory's admin."""
        self.at = name
        answer = self.page.goto(path)
        if answer is None or answer.status != 200:
            self.record(f"status {answer and answer.status} of {path}")
        return self.page

    def check_offers(self, labels: tuple[str, ...]) -> None:
        """Record the buttons and links that are missing or invisible."""
        content = self.page.locator("body")
        for label in labels:
            names = re.compile(rf"^\s*{re.escape(label)}\s*$")
            found = content.locator("a, button, input, summary, [aria-disabled]")
            texts = found.filter(visible=True, has_text=names)
            if not texts.count() and not content.locator(f"input[value='{label}']").count():
                self.record(f"no visible {label!r}")

    def check_menu(self, labels: tuple[str, ...]) -> None:
        """Open the menu of a session, record what it lacks or what does not fit, and close it."""
        opener = self.page.locator(".chatmemory-menu > summary")
        press(opener)
        entries = self.page.locator(".chatmemory-menu li").filter(visible=True)
        for label in labels:
            if not entries.filter(has_text=re.compile(rf"^\s*{re.escape(label)}")).count():
                self.record(f"no {label!r} in the menu")
        self.check_layout()
        press(opener)

    def check_layout(self) -> None:
        """Record what does not fit, when the page has its styles."""
        self.page.wait_for_load_state()
        for fault in self.page.evaluate(FIND_WIDE):
            self.record(fault)
        self.check_buttons()

    def check_buttons(self) -> None:
        """Record buttons that are covered, cut, too small, or not separated."""
        found = self.page.evaluate(FIND_BAD_BUTTONS, BUTTONS)
        for _ in range(20):  # a theme may still move its navigation after a change of the width
            if not found:
                return
            self.page.wait_for_timeout(100)
            found = self.page.evaluate(FIND_BAD_BUTTONS, BUTTONS)
        for fault in found:
            self.record(fault)

    def check_contrast_of_buttons(self) -> None:
        """Record buttons whose text has too little contrast."""
        self._run_axe(["color-contrast"], BUTTONS)

    def check_access(self, *rules: str) -> None:
        """Record serious and critical findings of axe-core, by default of all rules."""
        self._run_axe(list(rules))

    def _run_axe(self, rules: list[str], within: str = "") -> None:
        if not self.page.evaluate("typeof axe === 'object'"):
            self.page.evaluate(axe())
        for finding in self.page.evaluate(RUN_AXE, {"rules": rules, "within": within}):
            self.record(finding)


def press(target: Locator) -> None:
    """Click when the page is loaded: until then Django's sidebar moves what is beside it."""
    target.page.wait_for_load_state()
    target.click()


def axe() -> str:
    """Return the source of axe-core; skip the test if it is not installed."""
    if not AXE.is_file():
        pytest.skip("axe-core is not installed: make js installs it")
    return AXE.read_text(encoding="utf-8")
