// Creates and changes DOM nodes without losing the focus or the scroll position.

import {parse} from "../shared/html.js";
import {words} from "./chat-words.js";
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
  node.append(author, text, note);
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
 * Name a button with an icon.
 *
 * @param {HTMLElement} button
 * @param {string} text
 */
export function setLabel(button, text) {
  button.title = text;
  button.setAttribute("aria-label", text);
}

/**
 * A button that shows only an icon.
 *
 * @param {string} label
 * @param {string} path of the icon, in a square of 24
 * @param {string} className
 * @param {(event: MouseEvent) => void} onClick
 */
export function iconButton(label, path, className, onClick = () => {}) {
  const node = button("", onClick, `cm-icon ${className}`);
  setIcon(node, label, path);
  return node;
}

/**
 * @param {HTMLElement} button
 * @param {string} label
 * @param {string} path
 */
export function setIcon(button, label, path) {
  setLabel(button, label);
  const icon = `<svg viewBox="0 0 24 24" width="17" height="17" aria-hidden="true"><path d="${path}" fill="none" stroke="currentColor" stroke-width="1.8" stroke-linejoin="round"/></svg>`;
  button.replaceChildren(parse(icon));
}

/**
 * Show these controls below a message.
 *
 * @param {Element} node
 * @param {HTMLElement[]} tools
 */
export function setTools(node, tools) {
  let bar = node.querySelector(":scope > .cm-tools");
  if (!bar) {
    bar = document.createElement("div");
    bar.className = "cm-tools";
    bar.setAttribute("aria-live", "off");
    node.append(bar);
  }
  const known = [...bar.children];
  const isSame = known.length === tools.length && tools.every((tool, i) => isAlike(tool, known[i]));
  if (!isSame) {
    bar.replaceChildren(...tools);
    return;
  }
  // A replaced button would lose the focus.
  for (const [index, tool] of tools.entries()) {
    for (const name of STATES) {
      const value = tool.getAttribute(name);
      if (value === null) known[index].removeAttribute(name);
      else known[index].setAttribute(name, value);
    }
  }
}

const STATES = ["aria-pressed", "disabled"];

/**
 * Whether two controls differ only in their states.
 *
 * @param {Element} tool
 * @param {Element} known
 */
function isAlike(tool, known) {
  if (tool.className !== known.className) return false;
  return tool instanceof HTMLButtonElement || tool.textContent === known.textContent;
}
