// Stores a rating, and asks for its reason. Loaded with the first rating.

import {parse} from "../shared/html.js";
import {gettext as _} from "../shared/language.js";
import {addStyle} from "../shared/style.js";
import {words} from "./chat-words.js";
import {find} from "./nodes.js";

/** @import {ChatMemoryClient} from "../client/chatmemory-client.js" */
/** @import {MessageFrame} from "../client/types.d.ts" */

const template = parse(`
<form class="cm-reason" aria-live="off">
  <input type="text" name="reason" maxlength="1000" autocomplete="off">
  <button type="submit" class="cm-link"></button>
  <button type="button" class="cm-link"></button>
</form>`);

/**
 * Rate a turn, or withdraw the same rating.
 *
 * @param {ChatMemoryClient} client
 * @param {MessageFrame & {turn: string}} row
 * @param {HTMLElement} node of the row
 * @param {1 | -1} value
 */
export async function rate(client, {seq, turn}, node, value) {
  await addStyle(node, ["element/forms.css"]);
  const isGiven = client.rows.get(seq)?.feedback === value;
  if (!(await put(client, node, turn, isGiven ? null : value)) || isGiven) return;
  const question = value > 0 ? _("What was good? (optional)") : _("What was wrong? (optional)");
  const ask = (text = "") =>
    askForReason(node, question, text, async (reason) => {
      close(node);
      node.querySelector(/** @type {"button"} */ (value > 0 ? ".cm-good" : ".cm-poor"))?.focus();
      if (reason && !(await put(client, node, turn, value, reason))) ask(reason);
    });
  ask().focus();
}

/**
 * Store a rating; false, with a notice, if that failed.
 *
 * @param {ChatMemoryClient} client
 * @param {HTMLElement} node
 * @param {string} turn
 * @param {1 | -1 | null} value
 */
async function put(client, node, turn, value, reason = "") {
  close(node);
  try {
    await client.feedback(turn, value, reason);
    return true;
  } catch {
    close(node);
    const notice = document.createElement("p");
    notice.className = "cm-reason";
    notice.textContent = _("Your rating was not saved. Try again.");
    node.append(notice);
    return false;
  }
}

/** @param {HTMLElement} node */
function close(node) {
  for (const shown of node.querySelectorAll(":scope > .cm-reason")) shown.remove();
}

/**
 * Show the form below a message; returns its text box.
 *
 * @param {HTMLElement} node of the message
 * @param {string} question
 * @param {string} text a reason that was not saved
 * @param {(reason: string) => void} onEnd gets "" if the user gives no reason
 */
function askForReason(node, question, text, onEnd) {
  const copy = /** @type {DocumentFragment} */ (template.cloneNode(true));
  const form = find(copy, "form", HTMLFormElement);
  const reason = find(form, "input", HTMLInputElement);
  const cancel = find(form, "[type=button]", HTMLButtonElement);
  reason.value = text;
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
  node.querySelector(":scope > form.cm-reason")?.remove(); // that of another click
  node.append(form);
  return reason;
}
