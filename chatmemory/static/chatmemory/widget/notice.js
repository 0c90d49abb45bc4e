// A section above the messages of a widget: a note, or a question with its answers.

import {words} from "../element/chat-words.js";
import {button} from "../element/nodes.js";

/**
 * Show a section, instead of an earlier one.
 *
 * @param {HTMLElement} root
 * @param {string} text which screen readers announce
 * @param {HTMLElement[]} parts below the text
 */
export function showNotice(root, text, parts) {
  root.querySelector(".cm-notice")?.remove();
  const node = document.createElement("section");
  node.className = "cm-notice";
  const line = document.createElement("p");
  line.setAttribute("role", "status");
  node.append(line, ...parts);
  root.querySelector(".cm-banner")?.after(node);
  setNoticeText(node, text); // after the insertion, else it is not announced
  return node;
}

/**
 * @param {HTMLElement} notice
 * @param {string} text
 */
export function setNoticeText(notice, text) {
  notice.setAttribute("aria-label", text);
  const line = notice.querySelector("p");
  if (line) line.textContent = text;
}

/**
 * Show a note until the user dismisses it.
 *
 * @param {HTMLElement} root
 * @param {string} text
 * @param {() => void} onDismiss
 */
export function showNote(root, text, onDismiss) {
  const dismiss = button(words.dismiss, () => {
    notice.remove();
    onDismiss();
  });
  const notice = showNotice(root, text, [dismiss]);
}
