import {words} from "./chat-words.js";
import {button, textBox} from "./nodes.js";

const MAX_CHARS = 1_500;
const MAX_LINES = 20;

/**
 * Fold the text of a message if it is long, with a button to show all of it.
 *
 * @param {HTMLElement} node
 */
export function foldIfLong(node) {
  const box = textBox(node);
  node.querySelector(":scope > .cm-fold")?.remove();
  const text = box.textContent ?? "";
  const isLong = text.length > MAX_CHARS || text.split("\n", MAX_LINES + 1).length > MAX_LINES;
  box.classList.toggle("cm-folded", isLong);
  if (!isLong) return;
  const toggle = button(
    words.showAll,
    () => {
      const isFolded = box.classList.toggle("cm-folded");
      toggle.textContent = isFolded ? words.showAll : words.showLess;
      toggle.setAttribute("aria-expanded", String(!isFolded));
    },
    "cm-fold",
  );
  toggle.setAttribute("aria-expanded", "false");
  box.after(toggle);
}
