// The box in which a new message is written.

import {words} from "./chat-words.js";
import {excessChars, isBlank} from "./text.js";

/** @import {ChatMemoryClient} from "../client/chatmemory-client.js" */
/** @import {Parts} from "./skeleton.js" */

const HINT_SHARE = 0.1; // of the limit: how close to it the length is shown

export class Composer {
  #parts;
  #client;
  #draftKey;
  #problem = ""; // why the text that was sent is here again

  /**
   * @param {Pick<Parts, "form" | "log" | "text" | "send" | "hint" | "rows">} parts
   * @param {ChatMemoryClient} client
   * @param {string} draftKey
   * @param {(text: string) => void} onSend
   */
  constructor(parts, client, draftKey, onSend) {
    this.#parts = parts;
    this.#client = client;
    this.#draftKey = draftKey;
    const {form, text} = parts;
    text.value = this.#draft;
    const send = () => {
      if (!isSendable(text.value, client)) return;
      onSend(text.value);
      text.value = this.#problem = "";
      this.update();
      text.focus();
    };
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      send();
    });
    text.addEventListener("input", () => this.update());
    text.addEventListener("keydown", (event) => {
      if (!isSendKey(event)) return;
      event.preventDefault();
      send();
    });
    const listenToKeys = async () => (await import("./keyboard.js")).listenToKeys(parts, client);
    text.addEventListener("focus", listenToKeys, {once: true});
  }

  // Kept until the tab is closed, so that two tabs have two drafts.
  get #draft() {
    try {
      return sessionStorage.getItem(this.#draftKey) ?? "";
    } catch {
      return ""; // forbidden
    }
  }

  set #draft(text) {
    try {
      if (text) sessionStorage.setItem(this.#draftKey, text);
      else sessionStorage.removeItem(this.#draftKey);
    } catch {
      // Full or forbidden: the draft ends with the page.
    }
  }

  /** Show the length of a text near the limit, and whether it can be sent. */
  update() {
    const {text, send, hint} = this.#parts;
    this.#draft = text.value;
    const limit = maxChars(this.#client);
    const excess = excessChars(text.value, limit);
    if (!text.value) this.#problem = "";
    let shown = this.#problem;
    hint.classList.toggle("cm-over", excess > 0 || Boolean(shown));
    if (excess > 0) shown = words.tooLong(excess);
    else if (!shown && -excess < limit * HINT_SHARE) shown = words.length(limit + excess, limit);
    if (hint.textContent !== shown) hint.textContent = shown;
    text.setAttribute("aria-invalid", String(excess > 0));
    text.disabled = Boolean(this.#client.session?.archived);
    send.disabled = !isSendable(text.value, this.#client);
    fitHeight(text);
  }

  /** @param {string} placeholder */
  setPlaceholder(placeholder) {
    this.#parts.text.placeholder = placeholder;
  }

  /**
   * Put a text back into the box, before the text that is there.
   *
   * @param {string} text
   * @param {string} problem that is shown until the text is sent or deleted
   */
  restore(text, problem = "") {
    const box = this.#parts.text;
    box.value = box.value ? `${text}\n${box.value}` : text;
    this.#problem = problem || this.#problem;
    this.update();
  }

  // On a touch screen the focus would open the keyboard over the messages.
  focusUnlessTouch() {
    if (!isTouch()) this.#parts.text.focus({preventScroll: true});
  }

  focus() {
    this.#parts.text.focus();
  }
}

/**
 * @param {string} text
 * @param {ChatMemoryClient} client
 */
export function isSendable(text, client) {
  return !isBlank(text) && excessChars(text, maxChars(client)) <= 0 && !client.session?.archived;
}

/** @param {ChatMemoryClient} client */
function maxChars(client) {
  return client.limits.max_message_chars ?? Number.POSITIVE_INFINITY;
}

/**
 * Whether a key sends the message. On a touch screen Enter is the only way to a new line; while a
 * text is composed (Japanese, Chinese) it chooses a candidate; only `keyCode` states so in Safari.
 *
 * @param {KeyboardEvent} event
 */
export function isSendKey({key, shiftKey, isComposing, keyCode}) {
  return key === "Enter" && !shiftKey && !isComposing && keyCode !== 229 && !isTouch();
}

/**
 * Make a box as high as its text, in browsers without `field-sizing`.
 *
 * @param {HTMLTextAreaElement} box
 */
export function fitHeight(box) {
  if (CSS.supports("field-sizing", "content")) return;
  box.style.height = "auto";
  box.style.height = `${box.scrollHeight}px`;
}

function isTouch() {
  return matchMedia("(pointer: coarse)").matches;
}
