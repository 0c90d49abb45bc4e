// <chat-memory url="/ws/chat/KEY/">: an element to read and write a session.
//
// It is drawn in a shadow root with its own stylesheet, and changes nothing outside. Its attributes,
// events and methods are in docs/widget.md. Rows that are already in the element are kept.

import {ChatView} from "./chat/view.js";
import {words} from "./chat-words.js";

export {words};

/** @import {Panel} from "./chat/panel.js" */

export class ChatMemory extends HTMLElement {
  static observedAttributes = ["open"];

  /** @type {ChatView | null} */
  #view = null;
  /** @type {Panel | null} with `mode="button"` */
  #panel = null;
  #isReady = false; // drawn with its style

  // Called again when the element is moved in the document.
  connectedCallback() {
    if (!this.#view) this.#build();
    this.#update();
  }

  disconnectedCallback() {
    this.#view?.stop();
  }

  attributeChangedCallback() {
    this.#update();
  }

  /** The `ChatMemoryClient`, once the element is in the document. */
  get client() {
    return this.#view?.client;
  }

  /** Open the panel of a widget with `mode="button"`, and focus its text box. */
  open() {
    this.toggleAttribute("open", true);
    this.focus();
  }

  /** Close the panel. The connection remains, and a reply continues. */
  close() {
    this.toggleAttribute("open", false);
  }

  /** Focus the text box; on a touch screen, where this would open the keyboard, only the panel. */
  focus() {
    this.#panel?.focus();
    this.#view?.focus();
  }

  async #build() {
    const isLight = this.hasAttribute("light");
    const root = isLight ? this : document.createElement("div");
    root.classList.add("cm-chat");
    this.#view = new ChatView(this, root);
    if (!isLight) {
      const actions = {open: () => this.open(), close: () => this.close()};
      const {wrap} = await import("./chat/widget.js");
      this.#panel = await wrap(this, root, this.#isButton ? actions : null);
    }
    this.#isReady = true;
    this.#update();
    if (this.hasAttribute("autofocus") && !this.#panel) this.focus();
  }

  get #isButton() {
    return this.getAttribute("mode") === "button";
  }

  // Connect; with a panel, when it is opened for the first time: most pages are left without a word.
  #update() {
    if (!this.#isReady || !this.isConnected) return;
    if (this.#isButton) {
      const isOpen = this.hasAttribute("open");
      if (!this.#panel?.toggle(isOpen)) return;
      const init = {bubbles: true, composed: true, detail: {open: isOpen}};
      this.dispatchEvent(new CustomEvent("chatmemory:toggle", init));
      if (!isOpen) return;
    }
    this.#view?.start();
  }
}

customElements.define("chat-memory", ChatMemory);

// A page whose main content is the element shows the session's title: the attribute `page-title`.
document.addEventListener("chatmemory:title", (event) => {
  if (!(event.target instanceof ChatMemory && event.target.hasAttribute("page-title"))) return;
  const {title} = /** @type {CustomEvent<{title: string}>} */ (event).detail;
  for (const node of document.querySelectorAll("[data-cm-title]")) {
    if (node.textContent !== title) node.textContent = title;
  }
  if (document.title !== title) document.title = title;
});
