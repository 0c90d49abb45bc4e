// Marks unread chats. Only this browser knows which message of each chat it has shown last.

const MAX_CHATS = 500;

export const list = /** @type {HTMLElement} */ (document.querySelector(".cm-chats"));
export const search = /** @type {HTMLInputElement} */ (document.getElementById("cm-search"));
export const {person} = list.dataset;
export const seenKey = `chatmemory:seen:${person}`;

/** The key of the chat on this page; empty on a page that only lists chats. */
export const openKey = document.querySelector(".cm-heading")?.getAttribute("data-key") ?? "";

/** Note what is shown, and mark the chats with newer messages than this browser has shown. */
export function mark() {
  const seen = readSeen();
  for (const row of document.querySelectorAll("li[data-key]")) {
    const key = row.getAttribute("data-key") ?? "";
    const last = Number(row.getAttribute("data-last"));
    if (key === openKey && !document.hidden) noteSeen(seen, key, last);
    // A chat that this browser has never shown is not unread.
    const isRead = key === openKey || last <= (seen.get(key) ?? last);
    row.querySelector(".cm-unread")?.toggleAttribute("hidden", isRead);
  }
}

/** @returns {Map<string, number>} by the key of a chat */
function readSeen() {
  try {
    return new Map(JSON.parse(localStorage.getItem(seenKey) ?? "[]"));
  } catch {
    return new Map(); // no storage, or a foreign value
  }
}

/**
 * @param {Map<string, number>} seen
 * @param {string} key
 * @param {number} last
 */
function noteSeen(seen, key, last) {
  if (last <= (seen.get(key) ?? 0)) return;
  seen.delete(key); // so that it is the last one
  seen.set(key, last);
  try {
    localStorage.setItem(seenKey, JSON.stringify([...seen].slice(-MAX_CHATS)));
  } catch {
    // no storage, so nothing is unread
  }
}
