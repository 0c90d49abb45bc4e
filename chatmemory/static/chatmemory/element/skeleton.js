// The fixed parts of the element, around the messages.

import {parse} from "../shared/html.js";
import {words} from "./chat-words.js";
import {find, setLabel} from "./nodes.js";

const template = parse(`
<div class="cm-banner" role="status" hidden><span></span><button type="button" class="cm-link"></button></div>
<div class="cm-frame">
  <div class="cm-log" role="log" aria-live="polite" tabindex="0">
    <div class="cm-lane">
      <button type="button" class="cm-older cm-link" hidden></button>
      <div class="cm-empty" hidden><p></p></div>
      <div class="cm-tail"></div>
    </div>
  </div>
  <button type="button" class="cm-newer" hidden></button>
</div>
<form class="cm-composer">
  <div class="cm-box">
    <textarea rows="1" name="text" autocomplete="off" aria-describedby=""></textarea>
    <button type="button" class="cm-round cm-stop" hidden><svg viewBox="0 0 24 24" width="20" height="20" aria-hidden="true"><rect x="6" y="6" width="12" height="12" rx="2" fill="currentColor"/></svg></button>
    <button type="submit" class="cm-round cm-send" disabled><svg viewBox="0 0 24 24" width="20" height="20" aria-hidden="true"><path d="M12 19V5M5.5 11.5 12 5l6.5 6.5" fill="none" stroke="currentColor" stroke-width="2.2" stroke-linecap="round" stroke-linejoin="round"/></svg></button>
  </div>
  <p class="cm-hint" aria-live="polite"></p>
</form>`);

/** @typedef {ReturnType<typeof buildSkeleton>} Parts */

/**
 * Fill the root, and keep the messages and the suggestions that are already in the element.
 *
 * @param {HTMLElement} element
 * @param {HTMLElement} root the element itself, or a node in its shadow root
 */
export function buildSkeleton(element, root) {
  const rows = element.querySelector(".cm-rows") ?? document.createElement("div");
  rows.className = "cm-rows";
  rows.querySelector(".cm-earlier")?.remove();
  const suggestions = element.querySelector(".cm-suggestions");
  element.replaceChildren();
  root.replaceChildren(template.cloneNode(true));
  const banner = find(root, ".cm-banner", HTMLElement);
  const parts = {
    rows,
    banner,
    bannerText: find(banner, "span", HTMLElement),
    bannerButton: find(banner, "button", HTMLButtonElement),
    log: find(root, ".cm-log", HTMLElement),
    older: find(root, ".cm-older", HTMLButtonElement),
    empty: find(root, ".cm-empty", HTMLElement),
    tail: find(root, ".cm-tail", HTMLElement),
    newer: find(root, ".cm-newer", HTMLButtonElement),
    form: find(root, ".cm-composer", HTMLFormElement),
    text: find(root, "textarea", HTMLTextAreaElement),
    stop: find(root, ".cm-stop", HTMLButtonElement),
    send: find(root, ".cm-send", HTMLButtonElement),
    hint: find(root, ".cm-hint", HTMLElement),
  };
  parts.tail.before(rows);
  if (suggestions instanceof HTMLElement) {
    suggestions.hidden = false;
    parts.empty.append(suggestions);
  }
  label(parts);
  return parts;
}

/** @param {Parts} parts */
function label({log, text, hint, older, newer, empty, stop, send}) {
  log.setAttribute("aria-label", words.log);
  text.setAttribute("aria-label", words.label);
  text.setAttribute("placeholder", words.placeholder);
  hint.id = `cm-hint-${Math.random().toString(36).slice(2)}`;
  text.setAttribute("aria-describedby", hint.id);
  older.textContent = words.older;
  newer.textContent = words.newer;
  find(empty, "p", HTMLElement).textContent = words.empty;
  setLabel(stop, words.stop);
  setLabel(send, words.send);
}
