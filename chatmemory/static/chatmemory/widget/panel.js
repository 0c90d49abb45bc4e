// The widget as a button that opens a panel. The panel is a popover, so that no style of the host page
// can cover or clip it.

import {words} from "../element/chat-words.js";
import {find, setLabel} from "../element/nodes.js";
import {parse} from "../shared/html.js";
import {widgetWords} from "./widget-words.js";

const template = parse(`
<div class="cm-page cm-corner">
  <button type="button" class="cm-button cm-opener" aria-haspopup="dialog" aria-expanded="false" aria-controls="cm-panel"><svg viewBox="0 0 24 24" width="20" height="20" aria-hidden="true"><path fill="currentColor" d="M5 3h14a3 3 0 0 1 3 3v9a3 3 0 0 1-3 3h-7l-5.3 3.6A.45.45 0 0 1 6 21.2V18H5a3 3 0 0 1-3-3V6a3 3 0 0 1 3-3Z"/></svg><span></span></button>
</div>
<div class="cm-page cm-widget cm-panel" id="cm-panel" popover="manual" role="dialog" tabindex="-1">
  <div class="cm-panel-head"><h2></h2><button type="button" class="cm-panel-close"><svg viewBox="0 0 24 24" width="20" height="20" aria-hidden="true"><path d="M6 6l12 12M18 6 6 18" fill="none" stroke="currentColor" stroke-width="2" stroke-linecap="round"/></svg></button></div>
</div>`);

export class Panel {
  #element;
  #opener;
  #node;

  /**
   * @param {HTMLElement} element
   * @param {HTMLElement} chat the root of the view, which the panel contains
   * @param {HTMLElement} menu a button
   * @param {{open: () => void, close: () => void}} actions
   */
  constructor(element, chat, menu, {open, close}) {
    this.#element = element;
    const parts = /** @type {DocumentFragment} */ (template.cloneNode(true));
    this.#opener = find(parts, ".cm-opener", HTMLButtonElement);
    this.#node = find(parts, ".cm-panel", HTMLElement);
    const label = element.getAttribute("label") || widgetWords.chat;
    find(this.#opener, "span", HTMLElement).textContent = label;
    find(this.#node, "h2", HTMLElement).textContent = label;
    this.#node.setAttribute("aria-label", label);
    const closer = find(this.#node, ".cm-panel-close", HTMLButtonElement);
    setLabel(closer, words.close);
    closer.before(menu);
    this.#node.append(chat);
    this.parts = [...parts.children];
    this.#opener.addEventListener("click", () => (this.#isOpen ? close() : open()));
    closer.addEventListener("click", close);
    this.#node.addEventListener("keydown", (event) => {
      // A form in the chat may have used the key, or an input method.
      if (event.key !== "Escape" || event.defaultPrevented || event.isComposing) return;
      event.preventDefault(); // a dialog of the host page stays open
      close();
    });
  }

  /**
   * Show or hide the panel; false if it is already so.
   *
   * @param {boolean} isOpen
   */
  toggle(isOpen) {
    if (isOpen === this.#isOpen) return false;
    const hadFocus = this.#node.contains(this.#element.shadowRoot?.activeElement ?? null);
    this.#node.togglePopover(isOpen);
    this.#opener.setAttribute("aria-expanded", String(isOpen));
    if (hadFocus) this.#opener.focus({preventScroll: true});
    return true;
  }

  focus() {
    this.#node.focus({preventScroll: true});
  }

  get #isOpen() {
    return this.#node.matches(":popover-open");
  }
}
