// Changes of chats on the server, and the notice of what was done or why not.

const notice = /** @type {HTMLElement} */ (document.querySelector(".cm-notice"));
const text = /** @type {HTMLElement} */ (notice.querySelector("span"));
const undo = /** @type {HTMLButtonElement} */ (notice.querySelector("button"));
const form = /** @type {HTMLFormElement} */ (document.getElementById("cm-action"));

/** The texts that the template translates. */
export const words = /** @type {Record<string, string>} */ (notice.dataset);

/**
 * Change something, and return the answer; show why if it is refused.
 *
 * @param {string} address
 * @param {Record<string, string>} fields
 */
export async function post(address, fields = {}) {
  const body = new FormData(form); // with the CSRF token
  for (const [name, value] of Object.entries(fields)) body.set(name, value);
  try {
    const response = await fetch(address, {
      method: "POST",
      body,
      headers: {Accept: "application/json"},
    });
    const answer = await response.json().catch(() => null); // null for a page, such as the sign-in
    if (response.ok && answer) return answer;
    say(answer?.message ?? words.failed);
    document.dispatchEvent(new Event("chatmemory:changed")); // it may be missing, or have other states
  } catch {
    say(words.offline);
  }
}

/**
 * Show a notice, until it is dismissed or replaced.
 *
 * @param {string} message
 * @param {string} undoAddress of what undoes the change; empty for nothing
 */
export function say(message, undoAddress = "") {
  text.textContent = message;
  undo.hidden = !undoAddress;
  undo.setAttribute("formaction", undoAddress);
  notice.hidden = false;
}

export function dismiss() {
  notice.hidden = true;
}

export async function undoLast() {
  const answer = await post(undo.formAction);
  if (!answer) return;
  dismiss();
  // After the open chat was deleted, the page of a new chat shows the notice.
  if (answer.page && new URLSearchParams(location.search).has("undo")) location.assign(answer.page);
  else document.dispatchEvent(new Event("chatmemory:changed"));
}
