// <chat-memory url="/ws/chat/KEY/">: an element to read and write a session.
//
// Optional attributes: `page`, the address of the session's page, from which rendered Markdown and
// long messages are loaded (without it replies remain plain text); `person`, the user, so that the
// unsent messages of two users are stored separately; `create`, to create a new session; `details`,
// to show what an operator has to fix. Rows that are already in the element are kept.

import {ChatView} from "./chat/view.js";
import {words} from "./chat-words.js";

export {words};

export class ChatMemory extends HTMLElement {
  /** @type {ChatView | null} */
  #view = null;

  // Called again when the element is moved in the document.
  connectedCallback() {
    this.#view ??= new ChatView(this);
    this.#view.client.connect();
  }

  disconnectedCallback() {
    this.#view?.client.close();
  }

  /** The `ChatMemoryClient`, once the element is in the document. */
  get client() {
    return this.#view?.client;
  }
}

customElements.define("chat-memory", ChatMemory);

// The page around the element shows the session's title in the nodes with this attribute.
document.addEventListener("chat-memory-title", (event) => {
  const title = /** @type {CustomEvent<string>} */ (event).detail;
  for (const node of document.querySelectorAll("[data-cm-title]")) {
    if (node.textContent !== title) node.textContent = title;
  }
  if (document.title !== title) document.title = title;
});
