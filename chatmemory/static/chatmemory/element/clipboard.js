import {words} from "./chat-words.js";
import {button, setIcon} from "./nodes.js";

const COPIED_MS = 2_000;
const COPY = "M9 9h11v11H9zM5 15H4V4h11v1";
const CHECK = "M5 13l5 5L20 7";

/**
 * A button that copies a text, and shows for a moment whether it did.
 *
 * @param {() => string} text
 * @param {() => Node} shown the node that shows the text, which may get selected
 */
export function copyButton(text, shown, isIcon = false) {
  const show = (/** @type {string} */ label) => {
    if (!isIcon) copy.textContent = label;
    else setIcon(copy, label, label === words.copied ? CHECK : COPY);
  };
  const onClick = async () => {
    show((await copyText(text(), shown())) ? words.copied : words.notCopied);
    setTimeout(() => show(words.copy), COPIED_MS);
  };
  const copy = button("", onClick, isIcon ? "cm-icon cm-copy" : "");
  show(words.copy);
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
