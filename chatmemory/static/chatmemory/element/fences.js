// A block of code that is streamed: it looks like the finished one from its first line on.

import {addCodeHeads} from "./code.js";
import {find} from "./nodes.js";

const OPENING = /^( {0,3})(?:(`{3,})[^`\n]*|(~{3,})[^\n]*)(\n|$)/; // also in rendering/blocks.py

/**
 * The block of code with which a text begins; null if it begins with something else.
 *
 * @param {string} text
 * @param {boolean} isEnded whether nothing follows the text
 */
export function openCode(text, isEnded) {
  const [line, indent, ticks, tildes, end] = OPENING.exec(text) ?? [];
  if (line === undefined) return null;
  const [char, {length}] = [(ticks ?? tildes)[0], ticks ?? tildes];
  const closing = new RegExp(`^ {0,3}${char}{${length},}\\s*$`);
  const indents = new RegExp(`^ {0,${indent.length}}`);
  const lines = text.slice(line.length).split("\n");
  const count = lines.findIndex((one) => closing.test(one));
  const code = count < 0 ? lines : lines.slice(0, count);
  // The last line may become the closing one.
  const mayClose = count < 0 && !isEnded;
  if (mayClose && new RegExp(`^ {0,3}${char}+$`).test(lines.at(-1) ?? "")) code.pop();
  return {
    isBegun: Boolean(end),
    language: line
      .slice(indent.length + length)
      .trim()
      .split(/\s/)[0],
    code: code.map((one) => one.replace(indents, "")).join("\n"),
    rest: count < 0 ? "" : lines.slice(count + 1).join("\n"),
  };
}

/**
 * A frame for the code, with its head.
 *
 * @param {string} language
 */
export function codeFrame(language) {
  const parts = new DocumentFragment();
  const block = document.createElement("pre");
  const code = document.createElement("code");
  block.tabIndex = 0; // it may scroll
  if (language) code.className = `language-${language}`;
  code.append(new Text());
  block.append(code);
  parts.append(block);
  addCodeHeads(parts);
  return /** @type {HTMLElement} */ (parts.firstElementChild);
}

/**
 * Show the code of a frame; what is selected in it stays so.
 *
 * @param {HTMLElement} frame
 * @param {string} code
 */
export function setCode(frame, code) {
  const text = /** @type {Text} */ (find(frame, "code", HTMLElement).firstChild);
  if (code.startsWith(text.data)) text.appendData(code.slice(text.length));
  else text.data = code;
}

/**
 * Give a frame the content of the finished one; it keeps its place, focus and buttons.
 *
 * @param {HTMLElement} frame
 * @param {Element} finished
 */
export function closeCode(frame, finished) {
  for (const selector of ["pre", ".cm-code-head span"]) {
    const [node, other] = [frame, finished].map((root) => find(root, selector, HTMLElement));
    for (const {name, value} of other.attributes) node.setAttribute(name, value);
    node.replaceChildren(...other.childNodes);
  }
}
