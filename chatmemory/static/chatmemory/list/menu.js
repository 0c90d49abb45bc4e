// What a person can do with a chat in the list: its menu, and the notice of what was done.

import {addStyle} from "../shared/style.js";
import {hold, release} from "./list.js";
import {list, openKey, search} from "./marks.js";
import {rename} from "./rename.js";
import {dismiss, post, say, undoLast, words} from "./requests.js";

/** @import {ChatMemory} from "../element/chat.js" */

const template = /** @type {HTMLTemplateElement} */ (document.getElementById("cm-menu"));
const menu = /** @type {HTMLElement} */ (template.content.firstElementChild);
const items = [...menu.querySelectorAll("button")];
const MARGIN = 4; // pixels
/** @type {Record<string, [string, boolean]>} */
const STATES = {
  pin: ["data-pinned", true],
  unpin: ["data-pinned", false],
  archive: ["data-archived", true],
  unarchive: ["data-archived", false],
};

/** @type {HTMLButtonElement | undefined} of the open menu, or of the last one */
let opener;
/** @type {HTMLButtonElement | undefined} that of the menu which a press of the pointer has closed */
let pressed;

await addStyle(document, ["shared/menu.css", "list/menu.css"]);
menu.addEventListener("keydown", onKey);
menu.addEventListener("click", ({target}) => {
  const item = items.find((item) => item === target);
  if (!item || !opener) return;
  close();
  choose(item.dataset.action ?? "", opener);
});
menu.addEventListener("beforetoggle", (event) => {
  const opens = /** @type {ToggleEvent} */ (event).newState === "open";
  opener?.setAttribute("aria-expanded", String(opens));
  if (opens) hold();
  else release();
});
menu.addEventListener("focusout", ({relatedTarget}) => {
  if (relatedTarget instanceof Node && !menu.contains(relatedTarget)) close();
});
const isOpen = () => menu.matches(":popover-open");
document.addEventListener(
  "pointerdown",
  () => {
    pressed = isOpen() ? opener : undefined;
  },
  {capture: true},
);
// The menu does not move with its button.
addEventListener("resize", close);
document.addEventListener(
  "scroll",
  ({target}) => {
    if (target instanceof Node && target.contains(opener ?? null)) close();
  },
  {capture: true, passive: true},
);

/**
 * Do what a control of the list or of the notice does.
 *
 * @param {HTMLElement} control
 */
export function onClick(control) {
  if (control.matches(".cm-dismiss")) dismiss();
  else if (control.matches(".cm-notice *")) undoLast();
  else if (control instanceof HTMLButtonElement) open(control);
}

/** @param {HTMLButtonElement} button */
function open(button) {
  const isClosed = button === pressed; // by this click
  pressed = undefined; // Enter on the button opens the menu
  if (isClosed) return;
  const {dataset} = hostOf(button);
  const isPinned = "pinned" in dataset;
  const isArchived = isArchivedNow(dataset);
  const isOffered = {pin: !isPinned, unpin: isPinned, archive: !isArchived, unarchive: isArchived};
  for (const item of items) {
    item.hidden = isOffered[/** @type {"pin"} */ (item.dataset.action)] === false;
  }
  opener = button;
  button.focus(); // Safari does not focus it, and the focus returns to it
  button.closest("nav, main")?.append(menu);
  menu.ariaLabel = button.ariaLabel;
  menu.showPopover();
  place(button.getBoundingClientRect());
  items[0].focus();
}

/** @param {DOMStringMap} dataset of a chat */
function isArchivedNow({key, archived}) {
  /** @type {ChatMemory | null} */
  const chat = document.querySelector("chat-memory");
  // The list has no archived chats, but the open chat may have become one.
  return key === openKey && chat?.client?.session
    ? chat.client.session.archived
    : archived !== undefined;
}

function close() {
  if (isOpen()) menu.hidePopover();
}

/**
 * Place the menu below a button, or above it where there is no room.
 *
 * @param {DOMRect} at
 */
function place(at) {
  const {width, height} = menu.getBoundingClientRect();
  const start = menu.matches(":dir(rtl)") ? at.left : at.right - width;
  const left = Math.max(MARGIN, Math.min(start, innerWidth - width - MARGIN));
  const isBelow = at.bottom + height + MARGIN <= innerHeight;
  menu.style.left = `${left}px`;
  menu.style.top = `${Math.max(MARGIN, isBelow ? at.bottom : at.top - height)}px`;
}

/** @param {KeyboardEvent} event */
function onKey(event) {
  const offered = items.filter((item) => !item.hidden);
  const index = offered.indexOf(/** @type {HTMLButtonElement} */ (document.activeElement));
  /** @type {Record<string, number>} */
  const targets = {ArrowDown: index + 1, ArrowUp: index - 1, Home: 0, End: -1};
  if (event.key === "Tab") close();
  const target = targets[event.key];
  if (target === undefined) return;
  event.preventDefault();
  offered.at(target % offered.length)?.focus();
}

/**
 * @param {string} action
 * @param {HTMLButtonElement} button of the chat
 */
async function choose(action, button) {
  const host = hostOf(button);
  const address = (/** @type {string} */ action) =>
    new URL(`../${action}/`, button.formAction).href;
  if (action === "rename") return rename(host, address(action));
  const answer = await post(address(action));
  if (!answer) return;
  const {key} = host.dataset;
  if (action === "delete" && key === openKey) return location.assign(answer.next);
  if (action === "delete") say(words.deleted, answer.undo);
  else if (action === "archive") say(words.archived, address("unarchive"));
  if (action in STATES) setState(key, ...STATES[action]);
  if (action !== "pin" && action !== "unpin" && key !== openKey) removeRow(key);
  document.dispatchEvent(new Event("chatmemory:changed"));
}

/**
 * @param {string | undefined} key
 * @param {string} state
 * @param {boolean} isSet
 */
function setState(key, state, isSet) {
  for (const node of document.querySelectorAll(`[data-key="${key}"]`)) {
    node.toggleAttribute(state, isSet);
  }
}

/** @param {string | undefined} key */
function removeRow(key) {
  const row = list.querySelector(`li[data-key="${key}"]`);
  if (!row) return;
  const next = row.nextElementSibling ?? row.previousElementSibling;
  const hadFocus = row.contains(document.activeElement);
  row.remove();
  if (hadFocus) (next?.querySelector("button") ?? search).focus();
}

/** @param {Element} button */
const hostOf = (button) => /** @type {HTMLElement} */ (button.closest("[data-key]"));
