/**
 * The confirmation of a trim of one conversation: the preview follows what the operator types.
 * Without this file, the button Preview does it. The server compares the confirmed number anyway.
 */

import {parse} from "../shared/html.js";

const PAUSE_MS = 300;
const PREVIEW = "#chatmemory-preview";
const CONFIRM = ".submit-row button:not([name=preview])";
const COUNT = ".field-count";
const FIELDS = ["limit", "value"];

/** @type {AbortController | undefined} */
let last;

/** @param {HTMLFormElement} form */
async function fetchPreview(form) {
  last?.abort();
  last = new AbortController();
  const {signal} = last;
  await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
  signal.throwIfAborted();
  const body = new FormData(form);
  body.set("preview", "1");
  const response = await fetch(location.href, {method: "POST", body, signal});
  return parse(await response.text());
}

/**
 * Show an element of the new page in place of the old one; either may be missing.
 * @param {DocumentFragment} page
 * @param {HTMLFormElement} form
 * @param {string} selector
 * @param {string} previous the element behind which a new one belongs
 */
function show(page, form, selector, previous) {
  const [shown, found] = [form.querySelector(selector), page.querySelector(selector)];
  const node = found && document.importNode(found, true);
  if (!node) shown?.remove();
  else if (shown) shown.replaceWith(node);
  else form.querySelector(previous)?.after(node);
}

/**
 * Show the errors of a field, which keeps its value and the focus.
 * @param {DocumentFragment} page
 * @param {HTMLFormElement} form
 * @param {string} selector
 */
function showErrors(page, form, selector) {
  const [shown, found] = [form.querySelector(selector), page.querySelector(selector)];
  if (!shown || !found) return;
  shown.className = found.className;
  shown.querySelector(".errorlist")?.remove();
  const errors = found.querySelector(".errorlist");
  if (errors) shown.prepend(document.importNode(errors, true));
}

/** @param {HTMLFormElement} form */
async function update(form) {
  const button = form.querySelector(CONFIRM);
  button?.setAttribute("disabled", "");
  try {
    const page = await fetchPreview(form);
    const preview = page.querySelector(PREVIEW);
    if (!preview) return button?.removeAttribute("disabled"); // logged out
    document.querySelector(PREVIEW)?.replaceChildren(...preview.childNodes);
    show(page, form, CONFIRM, "[name=preview]");
    show(page, form, COUNT, ".field-reason");
    show(page, form, ".errornote", "[name=csrfmiddlewaretoken]");
    for (const name of FIELDS) showErrors(page, form, `.field-${name}`);
  } catch (error) {
    const isFollowed = error instanceof Error && error.name === "AbortError";
    if (!isFollowed) button?.removeAttribute("disabled");
  }
}

const form = document.querySelector(".chatmemory-removal form");
const value = form?.querySelector("[name=value]");
if (form instanceof HTMLFormElement && value instanceof HTMLInputElement) {
  for (const name of FIELDS) {
    form.querySelector(`[name=${name}]`)?.addEventListener("input", () => update(form));
  }
  // The browser may focus the field only after this.
  if (document.activeElement === value) value.select();
  else if (value.autofocus) value.addEventListener("focus", () => value.select(), {once: true});
  const options = Array.from(form.querySelectorAll("[name=limit] option"));
  const isOther = options.some(
    (one) => one instanceof HTMLOptionElement && one.selected !== one.defaultSelected,
  );
  if (isOther || value.value !== value.defaultValue) update(form); // a draft
}
