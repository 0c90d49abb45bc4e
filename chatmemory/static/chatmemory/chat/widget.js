// The element in a page of a host: its shadow root, its panel, and who chats in which session. The chat
// page does not load this module.

import {Access} from "./access.js";
import {askAdoption} from "./adoption.js";
import {find} from "./nodes.js";
import {Panel} from "./panel.js";
import {applyStyle} from "./style.js";
import {ChatView} from "./view.js";

/** @import {ChatMemory} from "../chat.js" */

export class Widget {
  #element;
  #root = document.createElement("div");
  #view;
  #access;
  /** @type {Panel | null} */
  #panel = null;
  #isStarted = false;
  #hasAsked = false;

  /** @param {ChatMemory} element */
  static async build(element) {
    const shadow = element.attachShadow({mode: "open"});
    const widget = new Widget(element, shadow);
    await applyStyle(shadow);
    return widget;
  }

  /**
   * @param {ChatMemory} element
   * @param {ShadowRoot} shadow
   */
  constructor(element, shadow) {
    this.#element = element;
    this.#root.className = "cm-chat";
    if (element.getAttribute("mode") === "button") {
      const actions = {open: () => element.open(), close: () => element.close()};
      this.#panel = new Panel(element, this.#root, actions);
      shadow.append(...this.#panel.parts);
    } else {
      const node = document.createElement("div");
      node.className = "cm-page cm-widget";
      node.append(this.#root);
      shadow.append(node);
    }
    shadow.addEventListener("click", (event) => followFootnote(shadow, event));
    [this.#access, this.#view] = this.#buildView();
  }

  get client() {
    return this.#view.client;
  }

  /** Connect; with a panel, when it is opened: most page views need no connection. */
  start() {
    if (this.#panel) {
      const isOpen = this.#element.hasAttribute("open");
      if (!this.#panel.toggle(isOpen)) return;
      const init = {bubbles: true, composed: true, detail: {open: isOpen}};
      this.#element.dispatchEvent(new CustomEvent("chatmemory:toggle", init));
      if (!isOpen) return;
    }
    this.#isStarted = true;
    this.#view.start();
    this.#ask();
  }

  stop() {
    this.#isStarted = false;
    this.#view.stop();
  }

  focus() {
    this.#panel?.focus();
    this.#view.focus();
  }

  /** @returns {[Access, ChatView]} */
  #buildView() {
    const access = new Access(this.#element, () => this.#restart());
    return [access, new ChatView(this.#element, this.#root, access)];
  }

  // Show another session.
  #restart() {
    const text = this.#root.querySelector("textarea")?.value ?? "";
    const hadFocus = this.#root.contains(this.#element.shadowRoot?.activeElement ?? null);
    this.#view.stop();
    [this.#access, this.#view] = this.#buildView();
    const box = find(this.#root, "textarea", HTMLTextAreaElement);
    box.value = text;
    box.dispatchEvent(new Event("input"));
    if (this.#isStarted) this.#view.start();
    if (hadFocus) this.#view.focus();
  }

  async #ask() {
    if (this.#hasAsked || !this.#element.hasAttribute("adopt")) return;
    this.#hasAsked = true;
    const then = {
      adopted: () => {
        this.#restart();
        this.focus(); // the button has disappeared
      },
      declined: () => this.focus(),
    };
    try {
      await askAdoption(this.#root, this.#access, then);
    } catch (error) {
      console.error("chatmemory: earlier chats can't be listed.", error);
    }
  }
}

/**
 * Follow a link within a message. The browser would search its target in the host page, and change the
 * address of that page.
 *
 * @param {ShadowRoot} shadow
 * @param {Event} event
 */
function followFootnote(shadow, event) {
  const link = event.target instanceof Element && event.target.closest('a[href^="#"]');
  if (!link) return;
  event.preventDefault();
  const node = shadow.getElementById(link.getAttribute("href")?.slice(1) ?? "");
  if (!node) return;
  node.tabIndex = -1;
  node.focus({preventScroll: true});
  node.scrollIntoView({block: "nearest"});
}
