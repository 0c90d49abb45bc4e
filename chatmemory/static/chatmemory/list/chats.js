// The list of chats. What is seldom needed is loaded later.

import {mark, openKey, person, search, seenKey} from "./marks.js";

const channel = new BroadcastChannel(`chatmemory:${person}`);
const isMac = /^(Mac|iP)/.test(navigator.platform);

async function refresh() {
  if (document.hidden) return; // it follows when the page is shown
  mark();
  // Without a connection the list stays; Firefox tries again on the next page.
  const module = await import("./list.js").catch(() => null);
  module?.refresh();
}

// A change here also changes the list in other tabs.
for (const name of ["changed", "message", "title"]) {
  document.addEventListener(`chatmemory:${name}`, () => {
    channel.postMessage(name);
    refresh();
  });
}
channel.addEventListener("message", refresh);
addEventListener("focus", refresh);
document.addEventListener("visibilitychange", refresh);
addEventListener("storage", ({key}) => key === seenKey && mark());
mark();

/** @type {typeof import("./menu.js") | undefined} once it is loaded */
let menu;

document.addEventListener("click", async (event) => {
  const {target, ctrlKey, metaKey} = event;
  const selector = ".cm-options, .cm-more, .cm-drawer-opener, .cm-notice :is(a, button)";
  const control = target instanceof Element && target.closest(selector);
  if (!(control instanceof HTMLElement) || ctrlKey || metaKey) return;
  event.preventDefault();
  const isOfList = control.matches(".cm-more");
  const isOfDrawer = control.matches(".cm-drawer-opener");
  // The next key is for the menu.
  if (menu && !isOfList && !isOfDrawer) return menu.onClick(control);
  const loadMenu = async () => (menu = await import("./menu.js"));
  const part = isOfDrawer ? loadDrawer() : loadMenu();
  const loading = isOfList ? import("./list.js") : part;
  const module = await loading.catch(() => null);
  if (module) module.onClick(control);
  else follow(control);
});

// Do the same as without JavaScript.
/** @param {HTMLElement} control */
function follow(control) {
  if (control instanceof HTMLAnchorElement) location.assign(control.href);
  else if (control instanceof HTMLButtonElement) control.form?.requestSubmit(control);
}

const startSearch = async () => (await import("./search.js")).start();
search.addEventListener("focus", startSearch, {once: true});
if (search === document.activeElement) startSearch();
addEventListener("keydown", (event) => {
  const {key, shiftKey, altKey, ctrlKey, metaKey} = event;
  if (key.toLowerCase() !== "k" || shiftKey || altKey || !(isMac ? metaKey : ctrlKey)) return;
  if (document.querySelector("dialog[open]")) return;
  event.preventDefault();
  search.select();
  if (search !== document.activeElement) loadDrawer().then(({onClick}) => onClick(search));
});

// On a narrow screen, the list beside a chat is a drawer.
// One import: several of the same module may end in any order.
/** @type {Promise<typeof import("./drawer.js")> | undefined} */
let drawer;
const loadDrawer = () => (drawer ??= import("./drawer.js"));
// The first swipe may end before it is loaded; later ones do not need these listeners.
const watch = (/** @type {TouchEvent} */ event) =>
  loadDrawer().then(({start, end}) => (event.type === "touchend" ? end : start)(event));
if (openKey) {
  for (const type of /** @type {const} */ (["touchstart", "touchend"]))
    addEventListener(type, watch, {once: true, passive: true});
}
