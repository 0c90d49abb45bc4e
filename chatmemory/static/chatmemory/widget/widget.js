// The element in a page of a host: its shadow root, its panel, and who chats in which session. The chat
// page does not load this module.

import {find, iconButton} from "../element/nodes.js";
import {ChatView} from "../element/view.js";
import {applyStyle} from "../shared/style.js";
import {Access} from "./access.js";
import {Panel} from "./panel.js";
import {widgetWords} from "./widget-words.js";

/** @import {ChatMemory} from "../element/chat.js" */

const DOT = "a1 1 0 1 0 0 2 1 1 0 0 0 0-2z";
const DOTS = `M5 11${DOT}m7 0${DOT}m7 0${DOT}`;

export class Widget {
  #element;
  #root = document.createElement("div");
  #menu = iconButton(widgetWords.options, DOTS, "cm-menu");
  #view;
  #access;
  /** @type {Panel | null} */
  #panel = null;
  #suggestions;
  #isStarted = false;
  #hasAsked = false;

  /** @param {ChatMemory} element */
  static async build(element) {
    const shadow = element.attachShadow({mode: "open"});
    const widget = new Widget(element, shadow);
    await applyStyle(shadow, ["widget/widget.css", "element/chat.css"]);
    return widget;
  }

  /**
   * @param {ChatMemory} element
   * @param {ShadowRoot} shadow
   */
  constructor(element, shadow) {
    this.#element = element;
    this.#root.className = "cm-chat";
    this.#suggestions = element.querySelector(".cm-suggestions");
    this.#menu.addEventListener("click", () => this.#showOptions());
    element.addEventListener("chatmemory:state", () => queueMicrotask(() => this.#drawMenu()));
    if (element.getAttribute("mode") === "button") {
      const actions = {open: () => element.open(), close: () => element.close()};
      this.#panel = new Panel(element, this.#root, this.#menu, actions);
      shadow.append(...this.#panel.parts);
    } else {
      const node = document.createElement("div");
      node.className = "cm-page cm-widget";
      node.append(this.#root, this.#menu);
      shadow.append(node);
    }
    shadow.addEventListener("click", (event) => followFootnote(shadow, event));
    [this.#access, this.#view] = this.#buildView();
    this.#write([...this.#access.takeUnsentOfVisitor(), this.#textBox.value]);
    this.#drawMenu();
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
    const access = new Access(this.#element, (note) => this.#restart(note));
    this.#root.classList.toggle("cm-closed", access.isClosed);
    if (this.#suggestions) this.#element.append(this.#suggestions.cloneNode(true)); // the view takes them
    return [access, new ChatView(this.#element, this.#root, access)];
  }

  /**
   * Show another session. By default the texts that were not sent are sent there. `keep` puts them
   * into the box: some may be stored already. `drop` is for those that the user has just deleted.
   *
   * @param {string} note
   * @param {"send" | "keep" | "drop"} texts
   */
  #restart(note, texts = "send") {
    const typed = this.#textBox.value;
    const hadFocus = this.#root.contains(this.#element.shadowRoot?.activeElement ?? null);
    this.#view.stop();
    const {unsent, refused} = this.#access.takeUnsent(this.#view.client);
    [this.#access, this.#view] = this.#buildView();
    const kept = texts === "keep" ? unsent : [];
    this.#write(texts === "drop" ? [] : [...refused, ...kept, typed]);
    if (texts === "send") for (const text of unsent) this.client.send(text);
    if (this.#isStarted) this.#view.start();
    if (hadFocus) this.#view.focus();
    this.#drawMenu();
    if (note) this.#note(note);
  }

  get #textBox() {
    return find(this.#root, "textarea", HTMLTextAreaElement);
  }

  // Put texts into the box, instead of the draft.
  /** @param {string[]} texts */
  #write(texts) {
    const box = this.#textBox;
    box.value = texts.filter(Boolean).join("\n");
    box.dispatchEvent(new Event("input"));
  }

  #drawMenu() {
    this.#menu.hidden = !(this.#access.canBegin || this.#access.hasVisitorData);
  }

  /** @param {string} text */
  async #note(text) {
    const {showNote} = await import("./notice.js");
    showNote(this.#root, text, () => this.focus());
  }

  async #ask() {
    if (this.#hasAsked || !this.#element.hasAttribute("adopt")) return;
    this.#hasAsked = true;
    const then = {
      moved: () => this.#restart(widgetWords.moved),
      answered: () => this.focus(),
    };
    try {
      const {askAdoption} = await import("./adoption.js");
      await askAdoption(this.#root, this.#access, then);
    } catch (error) {
      console.error("chatmemory: earlier chats can't be listed.", error);
    }
  }

  async #showOptions() {
    const {showOptions} = await import("./options.js");
    showOptions(this.#root, this.#access, {
      begin: () => this.#begin(),
      erase: () => this.#erase(),
      closed: () => (this.#menu.hidden ? this : this.#menu).focus(), // hidden if the chat has ended
    });
  }

  #begin() {
    this.#access.beginAnother();
    this.#restart("", "keep");
    this.#view.focus();
  }

  // The connection ends first: the end of the visitor would be reported as a problem.
  async #erase() {
    this.#view.stop();
    try {
      this.#restart(await this.#access.erase(), "drop");
    } catch (error) {
      this.#view.start();
      throw error;
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
