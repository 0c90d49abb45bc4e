// The stylesheets of a shadow root, which all widgets of a page share.

const NAMES = ["widget.css", "chat.css"];
const DEFAULT_SIZE = 16; // of browsers, for an element that was removed meanwhile

/** @type {Promise<CSSStyleSheet[]> | undefined} */
let loading;

/**
 * Load the stylesheets, and show the content of a shadow root with them. Inline styles would need
 * another policy.
 *
 * @param {ShadowRoot} shadow
 */
export async function applyStyle(shadow) {
  const parts = [...shadow.children].filter((part) => part instanceof HTMLElement);
  for (const part of parts) part.hidden = true;
  loading ??= load(chosenSize(parts[0]));
  try {
    shadow.adoptedStyleSheets = await loading;
  } catch (error) {
    loading = undefined;
    console.error("chatmemory: a stylesheet can't be loaded, so the chat has no style.", error);
  }
  for (const part of parts) part.hidden = false;
}

/**
 * The size of text that the user has chosen in the browser, in pixels.
 *
 * @param {HTMLElement} node
 */
function chosenSize(node) {
  node.style.font = "medium sans-serif";
  const size = Number.parseFloat(getComputedStyle(node).fontSize) || DEFAULT_SIZE;
  node.style.font = "";
  return size;
}

/** @param {number} rem */
function load(rem) {
  return Promise.all(
    NAMES.map(async (name) => {
      const response = await fetch(new URL(`../${name}`, import.meta.url));
      if (!response.ok) throw new Error(`${response.url}: ${response.status}`);
      const text = await response.text();
      // The page may have another size of its root element, for example 62.5 %.
      const fixed = text.replace(/([\d.]+)rem\b/g, (_, size) => `${size * rem}px`);
      return new CSSStyleSheet().replace(fixed);
    }),
  );
}
