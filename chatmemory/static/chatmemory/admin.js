/**
 * The keys of a session's page in the admin: j and k move between messages, [ and ] between pages,
 * / to the search field. The page works without this file.
 */

/** @param {number} step 1 for the next message, -1 for the previous one. */
function moveFocus(step) {
  const rows = [...document.querySelectorAll("li.chatmemory-message[id]")].filter(
    (row) => row instanceof HTMLElement && row.offsetParent !== null,
  );
  const focused = document.activeElement?.closest("li.chatmemory-message[id]") ?? null;
  const at = focused ? rows.indexOf(focused) : -1;
  const inView = rows.findIndex((row) => row.getBoundingClientRect().bottom > 0);
  const row = rows[at < 0 ? inView : at + step];
  if (row instanceof HTMLElement) row.focus();
}

/** @param {string} selector */
function follow(selector) {
  const link = document.querySelector(selector);
  if (link instanceof HTMLAnchorElement) link.click();
}

/** @type {Record<string, () => void>} */
const KEYS = {
  j: () => moveFocus(1),
  k: () => moveFocus(-1),
  "[": () => follow("a.chatmemory-older"),
  "]": () => follow("a.chatmemory-newer"),
  "/": () => document.getElementById("chatmemory-search")?.focus(),
};

/** @param {EventTarget | null} target */
function isTyping(target) {
  return (
    target instanceof HTMLElement &&
    (target.isContentEditable || target.matches("input, textarea, select"))
  );
}

document.addEventListener("keydown", (event) => {
  const act = KEYS[event.key];
  const isPlain = !event.ctrlKey && !event.metaKey && !event.altKey && !event.isComposing;
  if (!act || !isPlain || isTyping(event.target)) return;
  event.preventDefault();
  act();
});

export {};
