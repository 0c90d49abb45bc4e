// The stylesheets of shadow roots, and those of parts that the page loads later. Inline styles would
// need another policy.

const DEFAULT_SIZE = 16; // of browsers, for an element that was removed meanwhile

/** @type {Map<string, Promise<CSSStyleSheet>>} which all widgets of a page share */
const sheets = new Map();
let rem = 0; // in a shadow root, in pixels

/**
 * Show the content of a shadow root with its stylesheets.
 *
 * @param {ShadowRoot} shadow
 * @param {string[]} names
 */
export async function applyStyle(shadow, names) {
  const parts = [...shadow.children].filter((part) => part instanceof HTMLElement);
  for (const part of parts) part.hidden = true;
  rem ||= chosenSize(parts[0]);
  await addStyle(shadow, names);
  for (const part of parts) part.hidden = false;
}

/**
 * Add stylesheets to the document or the shadow root that contains a node.
 *
 * @param {Node} node
 * @param {string[]} names with their folders
 */
export async function addStyle(node, names) {
  const root = node.getRootNode();
  if (!(root instanceof Document || root instanceof ShadowRoot)) return;
  const size = root instanceof ShadowRoot ? rem : 0;
  try {
    const found = await Promise.all(names.map((name) => load(name, size)));
    const known = new Set(root.adoptedStyleSheets);
    const added = found.filter((sheet) => !known.has(sheet));
    if (added.length) root.adoptedStyleSheets = [...known, ...added]; // styles all again
  } catch (error) {
    console.error("chatmemory: a stylesheet can't be loaded, so a part has no style.", error);
  }
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

/**
 * @param {string} name
 * @param {number} size of one rem in pixels, 0 for that of the page
 */
function load(name, size) {
  const key = `${name} ${size}`;
  const sheet = sheets.get(key) ?? build(name, size);
  sheets.set(key, sheet);
  sheet.catch(() => sheets.delete(key));
  return sheet;
}

/**
 * @param {string} name
 * @param {number} size
 */
async function build(name, size) {
  const response = await fetch(new URL(`../${name}`, import.meta.url));
  if (!response.ok) throw new Error(`${response.url}: ${response.status}`);
  const text = await response.text();
  // The page may have another size of its root element, for example 62.5 %.
  const fixed = size ? text.replace(/([\d.]+)rem\b/g, (_, count) => `${count * size}px`) : text;
  return new CSSStyleSheet().replace(fixed);
}
