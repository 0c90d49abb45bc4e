// A form in place of a message, in which the user edits it.

import {parse} from "../shared/html.js";
import {addStyle} from "../shared/style.js";
import {words} from "./chat-words.js";
import {fitHeight, isSendable, isSendKey} from "./composer.js";
import {find, textBox} from "./nodes.js";

/** @import {ChatMemoryClient} from "../client/chatmemory-client.js" */
/** @import {MessageFrame} from "../client/types.d.ts" */

const template = parse(`
<form class="cm-change-form" aria-live="off">
  <textarea rows="1" name="text" autocomplete="off"></textarea>
  <div><button type="button" class="cm-button cm-quiet"></button><button type="submit" class="cm-button"></button></div>
</form>`);

export class Editor {
  /** @type {{node: HTMLElement, form: HTMLFormElement, box: HTMLTextAreaElement, original: string} | null} */
  #open = null;
  #client;
  #onSubmit;
  #onAbandon;

  /**
   * @param {ChatMemoryClient} client
   * @param {(seq: number, text: string) => void} onSubmit
   * @param {(text: string) => void} onAbandon gets a changed text whose message disappeared
   */
  constructor(client, onSubmit, onAbandon) {
    this.#client = client;
    this.#onSubmit = onSubmit;
    this.#onAbandon = onAbandon;
  }

  /**
   * @param {MessageFrame} row
   * @param {HTMLElement} node
   */
  async open({seq, text: original}, node) {
    await addStyle(node, ["element/forms.css"]);
    if (!node.isConnected) return;
    this.abandon();
    const form = find(
      /** @type {DocumentFragment} */ (template.cloneNode(true)),
      "form",
      HTMLFormElement,
    );
    const box = find(form, "textarea", HTMLTextAreaElement);
    const cancel = find(form, "[type=button]", HTMLButtonElement);
    const save = find(form, "[type=submit]", HTMLButtonElement);
    box.value = original;
    box.setAttribute("aria-label", words.change);
    cancel.textContent = words.cancel;
    save.textContent = words.send;
    const update = () => {
      save.disabled = !isSendable(box.value, this.#client);
      fitHeight(box);
    };
    const leave = () => {
      this.#close();
      node.querySelector(/** @type {"button"} */ (".cm-change"))?.focus();
    };
    const submit = (/** @type {Event} */ event) => {
      event.preventDefault();
      if (!isSendable(box.value, this.#client)) return;
      this.#close();
      this.#onSubmit(seq, box.value);
    };
    form.addEventListener("submit", submit);
    form.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !event.isComposing) {
        event.preventDefault(); // the panel of a widget stays open
        leave();
      } else if (event.target === box && isSendKey(event)) submit(event);
    });
    box.addEventListener("input", update);
    cancel.addEventListener("click", leave);
    this.#open = {node, form, box, original};
    node.classList.add("cm-changing");
    textBox(node).after(form);
    update();
    box.focus();
  }

  /** Close the form if its message is not shown any more. */
  abandonIfHidden() {
    if (this.#open && !this.#open.node.isConnected) this.abandon();
  }

  /**
   * Close the form if it is at this message.
   *
   * @param {HTMLElement} node
   */
  abandonAt(node) {
    if (this.#open?.node === node) this.abandon();
  }

  /** Close the form and hand a changed text to `onAbandon`. */
  abandon() {
    if (!this.#open) return;
    const {box, original} = this.#open;
    this.#close();
    if (box.value !== original) this.#onAbandon(box.value);
  }

  #close() {
    this.#open?.node.classList.remove("cm-changing");
    this.#open?.form.remove();
    this.#open = null;
  }
}
