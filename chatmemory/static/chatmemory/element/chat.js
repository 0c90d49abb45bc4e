// The element <chat-memory>; docs/reference/customizing.md has its attributes, events and methods.

import {words} from "./chat-words.js";
import {ChatView} from "./view.js";

export {words};

/** @import {Widget} from "../widget/widget.js" */

export class ChatMemory extends HTMLElement {
  static observedAttributes = ["open"];

  /** @type {ChatView | Widget | null} */
  #chat = null;
  #isBuilt = false;

  // Called again when the element is moved in the document.
  connectedCallback() {
    if (!this.#isBuilt) this.#build();
    else this.#chat?.start();
  }

  disconnectedCallback() {
    this.#chat?.stop();
  }

  attributeChangedCallback() {
    if (this.isConnected) this.#chat?.start();
  }

  /** The `ChatMemoryClient`, after the event `chatmemory:ready`. */
  get client() {
    return this.#chat?.client;
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
    this.#chat?.focus();
  }

  async #build() {
    this.#isBuilt = true;
    if (this.hasAttribute("light")) {
      this.classList.add("cm-chat");
      this.#chat = new ChatView(this, this);
    } else {
      const {Widget} = await import("../widget/widget.js");
      this.#chat = await Widget.build(this);
    }
    this.dispatchEvent(new CustomEvent("chatmemory:ready", {bubbles: true, composed: true}));
    if (this.isConnected) this.#chat.start();
    if (this.hasAttribute("autofocus") && this.getAttribute("mode") !== "button") this.focus();
  }
}

customElements.define("chat-memory", ChatMemory);

document.addEventListener("chatmemory:title", (event) => {
  if (!(event.target instanceof ChatMemory && event.target.hasAttribute("page-title"))) return;
  const {title} = /** @type {CustomEvent<{title: string}>} */ (event).detail;
  for (const node of document.querySelectorAll("[data-cm-title]")) node.textContent = title;
  document.title = title;
});
