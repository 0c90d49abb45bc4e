// The list as a drawer over the chat, on a narrow screen; loaded with the first touch or click.

import {addStyle} from "../shared/style.js";

const NEAR_PIXELS = 60; // a shorter move is no swipe
const drawer = /** @type {HTMLElement} */ (document.getElementById("cm-aside"));
const opener = /** @type {HTMLElement} */ (document.querySelector(".cm-drawer-opener"));
const closer = /** @type {HTMLElement} */ (drawer.querySelector(".cm-drawer-closer"));
const narrow = matchMedia("(max-width: 47rem)"); // also in chat.css
const isOpen = () => drawer.matches(".cm-drawn");

/** @type {Touch | null} of the finger that may swipe */
let first = null;

addStyle(document, ["list/drawer.css"]);
closer.addEventListener("click", close);
narrow.addEventListener("change", close);
document.addEventListener("click", ({target}) => {
  if (target instanceof Node && !drawer.contains(target) && !opener.contains(target)) close();
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || event.defaultPrevented || event.isComposing) return;
  if (!drawer.querySelector(":popover-open")) close();
});
addEventListener("touchstart", start, {passive: true});
addEventListener("touchend", end, {passive: true});

/**
 * Open the drawer.
 *
 * @param {HTMLElement} control that opens it, or a text box in it, which gets the focus
 */
export function onClick(control) {
  if (!narrow.matches) return;
  toggle(true);
  (drawer.contains(control) ? control : closer).focus();
}

function close() {
  if (!isOpen()) return;
  const hadFocus = drawer.contains(document.activeElement);
  toggle(false);
  if (hadFocus || document.activeElement === document.body) opener.focus();
}

// What is behind the drawer is inert, so that the focus stays in it: it is a dialog, named as its button.
/** @param {boolean} opens */
function toggle(opens) {
  drawer.classList.toggle("cm-drawn", opens);
  opener.setAttribute("aria-expanded", String(opens));
  drawer.role = opens ? "dialog" : null;
  drawer.ariaModal = opens ? "true" : null;
  drawer.ariaLabel = opens ? opener.ariaLabel : null;
  for (const node of document.body.children) {
    if (node instanceof HTMLElement && node !== drawer) node.inert = opens;
  }
}

/** @param {TouchEvent} event */
export function start({touches, target}) {
  const isSwipe = touches.length === 1 && target instanceof Element && !scrolls(target);
  first = isSwipe && !getSelection()?.toString() ? touches[0] : null;
}

/** @param {TouchEvent} event */
export function end({changedTouches}) {
  if (!first) return;
  const across = changedTouches[0].clientX - first.clientX;
  const down = Math.abs(changedTouches[0].clientY - first.clientY);
  first = null;
  if (Math.abs(across) < NEAR_PIXELS || Math.abs(across) < 2 * down) return;
  if (across > 0 === drawer.matches(":dir(rtl)")) close();
  else onClick(opener);
}

/**
 * Whether a finger scrolls this sideways, such as a table, or writes in it.
 *
 * @param {Element | null} node
 */
function scrolls(node) {
  for (let at = node; at; at = at.parentElement) {
    if (at.matches("textarea, input, select")) return true;
    if (at.scrollWidth > at.clientWidth && /auto|scroll/.test(getComputedStyle(at).overflowX))
      return true;
  }
  return false;
}
