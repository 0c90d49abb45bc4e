// The keys beside Enter: Escape, ArrowUp, and ? for a list of all.

import {gettext as _} from "../shared/language.js";
import {addStyle} from "../shared/style.js";

/** @import {ChatMemoryClient} from "../client/chatmemory-client.js" */
/** @import {Parts} from "./skeleton.js" */

const TYPING = "input, textarea, select, [contenteditable]";

/**
 * Listen to the keys of a chat; on a page of its own, also outside of it.
 *
 * @param {Pick<Parts, "form" | "log" | "text" | "rows">} parts
 * @param {ChatMemoryClient} client
 */
export function listenToKeys({form, log, text, rows}, client) {
  const chat = form.parentElement;
  if (!chat) return; // a widget shows another session meanwhile
  const opener = document.querySelector(".cm-keys-opener");
  const isPage = chat.hasAttribute("page-title");
  text.addEventListener("keydown", (event) => {
    if (event.isComposing || event.defaultPrevented) return;
    const {key} = event;
    const isStop = key === "Escape" && client.session?.running && !chat.closest("[popover]");
    const last = key === "ArrowUp" && !text.value && lastEdit(rows);
    if (isStop) client.stop();
    else if (last) last.click();
    else return;
    event.preventDefault();
  });
  (isPage ? document : log).addEventListener("keydown", (event) => {
    const {key, ctrlKey, metaKey, altKey, target} = /** @type {KeyboardEvent} */ (event);
    if (key !== "?" || ctrlKey || metaKey || altKey) return;
    if (target instanceof Element && target.matches(TYPING)) return;
    event.preventDefault();
    showKeys(chat, isPage);
  });
  if (!isPage || !(opener instanceof HTMLElement)) return;
  opener.hidden = false;
  opener.addEventListener("click", () => showKeys(chat, isPage));
}

/** @param {Element} rows */
function lastEdit(rows) {
  return [.../** @type {NodeListOf<HTMLElement>} */ (rows.querySelectorAll(".cm-change"))].at(-1);
}

/**
 * @param {HTMLElement} chat
 * @param {boolean} hasSearch
 */
async function showKeys(chat, hasSearch) {
  await addStyle(chat, ["element/keys.css"]);
  if (chat.querySelector(".cm-keys") || !chat.checkVisibility()) return;
  const isMac = /^(Mac|iP)/.test(navigator.platform);
  /** @type {[string[], string][]} */
  const keys = [
    [["Enter"], _("Send the message")],
    [["Shift", "Enter"], _("Begin a new line")],
    [["↑"], _("Edit your last message, if the text box is empty")],
    [["Esc"], _("Stop the reply")],
    ...(hasSearch
      ? [/** @type {[string[], string]} */ ([[isMac ? "⌘" : "Ctrl", "K"], _("Search the chats")])]
      : []),
    [["?"], _("Show these keys, outside of a text box")],
  ];
  const dialog = document.createElement("dialog");
  dialog.className = "cm-keys";
  const heading = document.createElement("h2");
  heading.id = "cm-keys";
  heading.textContent = _("Keyboard shortcuts");
  dialog.setAttribute("aria-labelledby", heading.id);
  const list = document.createElement("dl");
  for (const [names, meaning] of keys) {
    const term = document.createElement("dt");
    for (const name of names) {
      const node = document.createElement("kbd");
      node.textContent = name;
      term.append(node);
    }
    const detail = document.createElement("dd");
    detail.textContent = meaning;
    list.append(term, detail);
  }
  const form = document.createElement("form");
  form.method = "dialog";
  const close = document.createElement("button");
  close.className = "cm-button cm-quiet";
  close.textContent = _("Close");
  form.append(close);
  dialog.append(heading, list, form);
  dialog.addEventListener("close", () => dialog.remove());
  // A panel that closes would hide an open dialog, and the host page would stay inert.
  dialog.addEventListener("keydown", (event) => {
    if (event.key === "Escape") event.stopPropagation();
  });
  const panel = chat.closest("[popover]");
  panel?.addEventListener("beforetoggle", () => dialog.close(), {once: true});
  chat.append(dialog);
  dialog.showModal();
}
