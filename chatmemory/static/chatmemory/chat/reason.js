// A form for the reason of a rating, loaded with the first rating.

import {words} from "../chat-words.js";
import {find} from "./nodes.js";

const template = document.createElement("template");
template.innerHTML = `
<form class="cm-reason" aria-live="off">
  <input type="text" name="reason" maxlength="1000" autocomplete="off">
  <button type="submit" class="cm-link"></button>
  <button type="button" class="cm-link"></button>
</form>`;

/**
 * @param {HTMLElement} node of the message
 * @param {string} question
 * @param {(reason: string) => void} onEnd gets "" if the user gives no reason
 */
export function askForReason(node, question, onEnd) {
  const copy = /** @type {DocumentFragment} */ (template.content.cloneNode(true));
  const form = find(copy, "form", HTMLFormElement);
  const reason = find(form, "input", HTMLInputElement);
  const cancel = find(form, "[type=button]", HTMLButtonElement);
  reason.placeholder = question;
  reason.setAttribute("aria-label", question);
  find(form, "[type=submit]", HTMLButtonElement).textContent = words.send;
  cancel.textContent = words.close;
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    onEnd(reason.value.trim());
  });
  form.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || event.isComposing) return;
    event.preventDefault(); // the panel of a widget stays open
    onEnd("");
  });
  cancel.addEventListener("click", () => onEnd(""));
  node.append(form);
  reason.focus();
}
