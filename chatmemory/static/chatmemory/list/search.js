// The search of chats: results while the person writes, and the keys in them.

import {refresh, shownText} from "./list.js";
import {list, search} from "./marks.js";

export function start() {
  search.addEventListener("input", refresh);
  if (search.value.trim() !== shownText) refresh(); // written before this module was loaded
  search.addEventListener("keydown", (event) => {
    if (event.isComposing) return;
    if (event.key === "Escape" && search.value) {
      event.preventDefault();
      search.value = "";
      refresh();
    } else if (event.key === "ArrowDown") {
      move(event, 0);
    } else if (event.key === "Enter" && shownText && shownText === search.value.trim()) {
      event.preventDefault(); // otherwise the form opens a page of the results
      links()[0]?.click();
    }
  });
  list.addEventListener("keydown", (event) => {
    const step = {ArrowDown: 1, ArrowUp: -1}[event.key];
    const index = links().indexOf(/** @type {HTMLAnchorElement} */ (event.target));
    if (step && index >= 0) move(event, index + step);
  });
}

/**
 * @param {Event} event
 * @param {number} index of a chat; -1 for the box
 */
function move(event, index) {
  event.preventDefault();
  (index < 0 ? search : links()[index])?.focus();
}

const links = () => [...list.querySelectorAll(/** @type {"a"} */ ("li > a"))];
