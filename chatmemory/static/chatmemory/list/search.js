// The search of chats, and of their messages where the site has it: results while the person writes,
// and the keys in them.

import {refresh, shownText} from "./list.js";
import {list, search} from "./marks.js";

export function start() {
  search.addEventListener("input", refresh);
  const {messages} = /** @type {HTMLElement} */ (search.form).dataset;
  // Without a connection only titles are searched.
  if (messages)
    import("./found.js").then(
      (found) => found.start(messages),
      () => {},
    );
  if (search.value.trim() !== shownText) refresh(); // written before this module was loaded
  search.addEventListener("keydown", (event) => {
    if (event.isComposing) return;
    if (event.key === "Escape" && search.value) {
      event.preventDefault();
      search.value = "";
      search.dispatchEvent(new Event("input"));
    } else if (event.key === "ArrowDown") {
      move(event, 0);
    } else if (event.key === "Enter" && shownText && shownText === search.value.trim()) {
      event.preventDefault(); // otherwise the form opens a page of the results
      links()[0]?.click();
    }
  });
  list.parentElement?.addEventListener("keydown", (event) => {
    const step = {ArrowDown: 1, ArrowUp: -1}[event.key];
    const index = links().indexOf(/** @type {HTMLAnchorElement} */ (event.target));
    if (step && index >= 0) move(event, index + step);
  });
}

/**
 * @param {Event} event
 * @param {number} index of a chat or a message; -1 for the box
 */
function move(event, index) {
  event.preventDefault();
  (index < 0 ? search : links()[index])?.focus();
}

const LINKS = /** @type {"a"} */ (".cm-chats li > a, .cm-found:not(.cm-stale) li > a");
const links = () => [...document.querySelectorAll(LINKS)];
