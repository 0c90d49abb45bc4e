// <chat-memory url="/ws/chat/KEY/">: an element to read and write a session.
//
// It is drawn in a shadow root with its own stylesheet, and changes nothing outside. Its attributes,
// events and methods are in docs/widget.md. Rows that are already in the element are kept.

import {applyStyle} from "./chat/style.js";
import {ChatView} from "./chat/view.js";
import {words} from "./chat-words.js";

export {words};

export class ChatMemory extends HTMLElement {
  /** @type {ChatView | null} */
  #view = null;

  // Called again when the element is moved in the document.
  connectedCallback() {
    this.#view ??= this.#build();
    this.#view.start();
  }

  disconnectedCallback() {
    this.#view?.stop();
  }

  #build() {
    if (this.hasAttribute("light")) {
      const view = new ChatView(this, this);
      view.show();
      return view;
    }
    const root = document.createElement("div");
    root.className = "cm-page cm-widget";
    root.hidden = true;
    this.attachShadow({mode: "open"}).append(root);
    const view = new ChatView(this, root);
    applyStyle(root).then(() => view.show());
    return view;
  }

  /** The `ChatMemoryClient`, once the element is in the document. */
  get client() {
    return this.#view?.client;
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
