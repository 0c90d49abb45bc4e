// The pieces of the page, and how they change without losing focus or place.

import {words} from "./chat-words.js";

const HIDDEN = /([\u202a-\u202e\u2066-\u2069\u{e0000}-\u{e007f}])\1*/gu;

export function article(role) {
  const node = document.createElement("article");
  node.className = `cm-row cm-${role}`;
  const who = document.createElement("h2");
  who.className = "cm-who";
  who.textContent = words.who[role] ?? role;
  const text = document.createElement("div");
  text.className = "cm-text";
  text.dir = "auto";
  const note = document.createElement("p");
  note.className = "cm-note";
  if (role !== "tool") {
    node.append(who, text, note);
    return node;
  }
  const details = document.createElement("details");
  const summary = document.createElement("summary");
  summary.textContent = words.tool;
  details.append(summary, text);
  node.append(who, details, note);
  return node;
}

export function setText(node, text) {
  const box = node.querySelector(".cm-text");
  box.classList.remove("cm-rich");
  box.textContent = visible(text);
}

export function appendText(node, piece) {
  const box = node.querySelector(".cm-text");
  if (box.lastChild instanceof Text) box.lastChild.appendData(visible(piece));
  else box.textContent = visible(piece);
}

export function setNote(node, text, parts = []) {
  const note = node.querySelector(".cm-note");
  const now = [text, ...parts.map((part) => part.textContent)].join("\n");
  if (note.dataset.said === now) return; // so that a button keeps the focus
  note.dataset.said = now;
  note.replaceChildren(text, ...parts.flatMap((part) => [" ", part]));
}

export function link(href, text) {
  const node = document.createElement("a");
  node.href = href;
  node.textContent = text;
  return node;
}

export function button(text, act, name = "") {
  const node = document.createElement("button");
  node.type = "button";
  node.className = `cm-link ${name}`.trim();
  node.textContent = text;
  node.addEventListener("click", act);
  return node;
}

// The buttons below a message; they are kept, with the focus, as long as they are the same.
export function drawTools(node, tools) {
  let bar = node.querySelector(":scope > .cm-tools");
  const now = tools.map(({textContent, disabled}) => `${textContent}${disabled ? "-" : ""}`).join("\n");
  if ((bar?.dataset.has ?? "") === now) return;
  if (!bar) {
    bar = document.createElement("div");
    bar.className = "cm-tools";
    bar.setAttribute("aria-live", "off");
    node.append(bar);
  }
  bar.dataset.has = now;
  bar.replaceChildren(...tools);
}

// Let these nodes be the children, in this order; one that is in its place isn't touched.
export function arrange(parent, wanted) {
  let at = parent.firstElementChild;
  for (const node of wanted) {
    if (node === at) at = at.nextElementSibling;
    else parent.insertBefore(node, at);
  }
  while (at) {
    const next = at.nextElementSibling;
    at.remove();
    at = next;
  }
}

// Marks in place of characters that turn the direction of text, or that nobody sees.
export function visible(text) {
  return text.replace(HIDDEN, (run, one) => {
    const times = [...run].length;
    const code = one.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
    return `⟦U+${code}${times > 1 ? ` ×${times}` : ""}⟧`;
  });
}
