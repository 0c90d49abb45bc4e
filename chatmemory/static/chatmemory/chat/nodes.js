// Creates and changes DOM nodes without losing the focus or the scroll position. Text from users and
// models becomes a text node, never HTML.

import {words} from "../chat-words.js";
import {visible} from "./text.js";

/**
 * The element below `root` that matches, which must exist and have this type.
 *
 * @template {Element} T
 * @param {ParentNode} root
 * @param {string} selector
 * @param {new () => T} type
 * @returns {T}
 */
export function find(root, selector, type) {
  const node = root.querySelector(selector);
  if (node instanceof type) return node;
  throw new TypeError(`${selector} is not a ${type.name}.`);
}

/**
 * A message without text.
 *
 * @param {string} role
 */
export function article(role) {
  const node = document.createElement("article");
  node.className = `cm-row cm-${role}`;
  const author = document.createElement("h2");
  author.className = "cm-author";
  author.textContent = words.authors[role] ?? role;
  const text = document.createElement("div");
  text.className = "cm-text";
  text.dir = "auto";
  const note = document.createElement("p");
  note.className = "cm-note";
  if (role !== "tool") {
    node.append(author, text, note);
    return node;
  }
  const details = document.createElement("details");
  const summary = document.createElement("summary");
  summary.textContent = words.tool;
  text.tabIndex = 0; // it scrolls, which the keyboard must reach
  text.role = "group";
  text.ariaLabel = words.tool;
  details.append(summary, text);
  node.append(author, details, note);
  return node;
}

/** @param {ParentNode} node */
export function textBox(node) {
  return find(node, ".cm-text", HTMLElement);
}

/**
 * @param {ParentNode} node
 * @param {string} text
 */
export function setText(node, text) {
  const box = textBox(node);
  box.classList.remove("cm-rich");
  box.textContent = visible(text);
}

/**
 * Show a note, with links or buttons, below a message.
 *
 * @param {ParentNode} node
 * @param {string} text
 * @param {HTMLElement[]} controls
 */
export function setNote(node, text, controls = []) {
  const note = find(node, ".cm-note", HTMLElement);
  const shown = [text, ...controls.map(({textContent}) => textContent)].join("\n");
  if (note.dataset.shown === shown) return; // a replaced button would lose the focus
  note.dataset.shown = shown;
  note.replaceChildren(text, ...controls.flatMap((control) => [" ", control]));
}

/**
 * @param {string} href
 * @param {string} text
 */
export function link(href, text) {
  const node = document.createElement("a");
  node.href = href;
  node.textContent = text;
  return node;
}

/**
 * @param {string} text
 * @param {(event: MouseEvent) => void} onClick
 * @param {string} className
 */
export function button(text, onClick, className = "") {
  const node = document.createElement("button");
  node.type = "button";
  node.className = `cm-link ${className}`.trim();
  node.textContent = text;
  node.addEventListener("click", onClick);
  return node;
}

/**
 * Show these controls below a message.
 *
 * @param {Element} node
 * @param {HTMLElement[]} tools
 */
export function setTools(node, tools) {
  let bar = node.querySelector(":scope > .cm-tools");
  const shown = tools.map((tool) => `${tool.textContent}${isDisabled(tool) ? "-" : ""}`).join("\n");
  const known = bar instanceof HTMLElement ? bar.dataset.shown : "";
  if (known === shown) return; // a replaced button would lose the focus
  if (!bar) {
    bar = document.createElement("div");
    bar.className = "cm-tools";
    bar.setAttribute("aria-live", "off");
    node.append(bar);
  }
  /** @type {HTMLElement} */ (bar).dataset.shown = shown;
  bar.replaceChildren(...tools);
}

/** @param {HTMLElement} node */
function isDisabled(node) {
  return node instanceof HTMLButtonElement && node.disabled;
}

/**
 * Make these nodes the children, in this order. A node that already has its place is not touched: a
 * moved one would lose the focus, and a screen reader would announce it again.
 *
 * @param {Element} parent
 * @param {Element[]} wanted
 */
export function arrange(parent, wanted) {
  let next = parent.firstElementChild;
  for (const node of wanted) {
    if (node === next) next = next.nextElementSibling;
    else parent.insertBefore(node, next);
  }
  while (next) {
    const extra = next;
    next = extra.nextElementSibling;
    extra.remove();
  }
}
