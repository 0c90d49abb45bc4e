// The title of a chat as a text box, in place.

import {hold, release} from "./list.js";
import {openKey} from "./marks.js";
import {post} from "./requests.js";

const template = /** @type {HTMLTemplateElement} */ (document.getElementById("cm-rename"));

/**
 * @param {HTMLElement} host the row of the chat, or the heading above it
 * @param {string} address
 */
export function rename(host, address) {
  const shown = host.querySelector(".cm-title, h1")?.textContent ?? "";
  const original = "titled" in host.dataset ? shown : "";
  const form = /** @type {HTMLFormElement} */ (
    /** @type {Element} */ (template.content.firstElementChild).cloneNode(true)
  );
  const box = /** @type {HTMLInputElement} */ (form.querySelector("input"));
  box.value = original;
  box.placeholder = shown;
  let isOpen = true;

  function close() {
    const hadFocus = form.contains(document.activeElement);
    isOpen = false;
    host.classList.remove("cm-renaming");
    form.remove();
    if (hadFocus) host.querySelector("button")?.focus();
    release();
  }

  async function save() {
    const title = box.value.trim();
    if (title === original) return close();
    box.readOnly = true;
    const answer = await post(address, {title});
    box.readOnly = false;
    if (!isOpen) return;
    if (!answer) return box.focus(); // nothing is lost
    close();
    showTitle(host.dataset.key ?? "", answer.title);
    document.dispatchEvent(new Event("chatmemory:changed"));
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (!box.readOnly) save();
  });
  box.addEventListener("blur", () => isOpen && !box.readOnly && save());
  box.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || event.isComposing) return;
    event.preventDefault();
    close();
  });
  hold();
  host.classList.add("cm-renaming");
  host.append(form);
  box.select();
}

/**
 * @param {string} key
 * @param {string} title
 */
function showTitle(key, title) {
  for (const node of document.querySelectorAll(`li[data-key="${key}"] .cm-title`)) {
    node.textContent = title;
  }
  if (key !== openKey) return;
  for (const node of document.querySelectorAll("[data-cm-title]")) node.textContent = title;
  document.title = title;
}
