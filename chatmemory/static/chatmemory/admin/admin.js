/**
 * The keys of a session's page in the admin, and that its menus close. The page works without this
 * file.
 */

const MENUS = "details.chatmemory-menu, .chatmemory-tools details";

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
  "?": () => document.querySelector("#chatmemory-keys")?.toggleAttribute("open"),
};

/** @param {EventTarget | null} target Menus that contain it stay open. */
function closeMenus(target) {
  for (const menu of document.querySelectorAll(MENUS)) {
    if (target instanceof Node && menu.contains(target)) continue;
    if (menu.contains(document.activeElement)) menu.querySelector("summary")?.focus();
    menu.removeAttribute("open");
  }
}

/** @param {EventTarget | null} target */
function isTyping(target) {
  return (
    target instanceof HTMLElement &&
    (target.isContentEditable || target.matches("input, textarea, select"))
  );
}

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") closeMenus(null);
  const act = KEYS[event.key];
  const isPlain = !event.ctrlKey && !event.metaKey && !event.altKey && !event.isComposing;
  if (!act || !isPlain || isTyping(event.target)) return;
  event.preventDefault();
  act();
});

document.addEventListener("click", (event) => closeMenus(event.target));

export {};
