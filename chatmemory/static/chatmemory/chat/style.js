// The stylesheet of a shadow root: chat.css, which all elements of a page share.

/** @type {Promise<CSSStyleSheet> | undefined} */
let loading;

/**
 * Load the stylesheet, and show the root with it. Inline styles would need another policy.
 *
 * @param {HTMLElement} root the hidden root below a shadow root
 */
export async function applyStyle(root) {
  root.style.font = "medium sans-serif"; // the size that the user has chosen in the browser
  loading ??= load(Number.parseFloat(getComputedStyle(root).fontSize));
  try {
    const sheet = await loading;
    /** @type {ShadowRoot} */ (root.getRootNode()).adoptedStyleSheets = [sheet];
  } catch (error) {
    loading = undefined;
    console.error("chatmemory: chat.css can't be loaded, so the chat has no style.", error);
  }
  root.style.font = "";
  root.hidden = false;
}

/** @param {number} rem */
async function load(rem) {
  const response = await fetch(new URL("../chat.css", import.meta.url));
  if (!response.ok) throw new Error(`${response.url}: ${response.status}`);
  const text = await response.text();
  const sheet = new CSSStyleSheet();
  // The page may have another size of its root element, for example 62.5 %.
  return sheet.replace(text.replace(/([\d.]+)rem\b/g, (_, size) => `${size * rem}px`));
}
