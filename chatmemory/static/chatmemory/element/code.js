// The head of a code block: its language, and buttons to wrap and copy it.

import {words} from "./chat-words.js";
import {copyButton} from "./clipboard.js";
import {button} from "./nodes.js";
import {visible} from "./text.js";

/**
 * @param {ParentNode} root
 */
export function addCodeHeads(root) {
  for (const block of root.querySelectorAll("pre")) {
    const frame = document.createElement("div");
    frame.className = "cm-code";
    frame.dir = "ltr"; // also hides the labels from the `dir=auto` of the message
    block.replaceWith(frame);
    frame.append(head(block), block);
  }
}

/** @param {HTMLElement} block */
function head(block) {
  const node = document.createElement("div");
  node.className = "cm-code-head";
  node.setAttribute("aria-live", "off");
  const language = document.createElement("span");
  const [, name = ""] = /language-(\S+)/.exec(block.firstElementChild?.className ?? "") ?? [];
  language.textContent = visible(name);
  const wrap = button(words.wrapCode, () => {
    wrap.setAttribute("aria-pressed", String(block.classList.toggle("cm-wrapped")));
  });
  wrap.setAttribute("aria-pressed", "false");
  const copy = copyButton(
    () => block.textContent ?? "",
    () => block,
  );
  node.append(language, wrap, copy);
  return node;
}
