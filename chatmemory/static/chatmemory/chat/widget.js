// The shadow root around the view. The chat page does not load this module.

import {Panel} from "./panel.js";
import {applyStyle} from "./style.js";

/**
 * Put the root of a view into the shadow root of its element, and show it with its style; resolves to
 * the panel, if the element has one.
 *
 * @param {HTMLElement} element
 * @param {HTMLElement} root
 * @param {{open: () => void, close: () => void} | null} actions of a panel
 */
export async function wrap(element, root, actions) {
  const shadow = element.attachShadow({mode: "open"});
  const panel = actions && new Panel(element, root, actions);
  if (panel) {
    shadow.append(...panel.parts);
  } else {
    const widget = document.createElement("div");
    widget.className = "cm-page cm-widget";
    widget.append(root);
    shadow.append(widget);
  }
  shadow.addEventListener("click", (event) => followFootnote(shadow, event));
  await applyStyle(shadow);
  return panel;
}

/**
 * Follow a link within a message. The browser would search its target in the host page, and change the
 * address of that page.
 *
 * @param {ShadowRoot} shadow
 * @param {Event} event
 */
function followFootnote(shadow, event) {
  const link = event.target instanceof Element && event.target.closest('a[href^="#"]');
  if (!link) return;
  event.preventDefault();
  const node = shadow.getElementById(link.getAttribute("href")?.slice(1) ?? "");
  if (!node) return;
  node.tabIndex = -1;
  node.focus({preventScroll: true});
  node.scrollIntoView({block: "nearest"});
}
