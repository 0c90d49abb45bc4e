import {words} from "./chat-words.js";
import {button} from "./nodes.js";

const COPIED_MS = 2_000;

/**
 * A button that copies a text, and shows for a moment whether it did.
 *
 * @param {() => string} text
 * @param {() => Node} shown the node that shows the text, which may get selected
 */
export function copyButton(text, shown, className = "") {
  const copy = button(
    words.copy,
    async () => {
      copy.textContent = (await copyText(text(), shown())) ? words.copied : words.notCopied;
      setTimeout(() => {
        copy.textContent = words.copy;
      }, COPIED_MS);
    },
    className,
  );
  return copy;
}

/**
 * @param {string} text
 * @param {Node} shown
 */
async function copyText(text, shown) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Forbidden, or without HTTPS. Some browsers copy only with a selection.
    getSelection()?.selectAllChildren(shown);
    const put = (/** @type {ClipboardEvent} */ event) => {
      event.clipboardData?.setData("text/plain", text);
      event.preventDefault();
    };
    document.addEventListener("copy", put, {capture: true, once: true});
    const isCopied = document.execCommand("copy");
    document.removeEventListener("copy", put, {capture: true});
    return isCopied;
  }
}
