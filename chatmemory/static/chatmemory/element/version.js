// The versions of a turn: buttons that show another one, and a notice below an older one.

import {gettext as _, interpolate} from "../shared/language.js";
import {addStyle} from "../shared/style.js";
import {button} from "./nodes.js";

/** @import {ChatMemoryClient} from "../client/chatmemory-client.js" */
/** @import {VersionPlace} from "../client/types.d.ts" */
/** @import {ScrollPosition} from "./scroll.js" */

/**
 * The buttons to the versions before and after this one.
 *
 * @param {VersionPlace} place
 * @param {(place: VersionPlace, number: number, buttonClass: string) => void} show
 */
export function versionTools(place, show) {
  const {number, count} = place;
  const step = (
    /** @type {number} */ by,
    /** @type {string} */ label,
    /** @type {string} */ sign,
    /** @type {string} */ name,
  ) => {
    const node = button(sign, () => show(place, number + by, name), name);
    node.setAttribute("aria-label", label);
    node.title = label;
    node.disabled = number + by < 1 || number + by > count;
    return node;
  };
  const position = document.createElement("span");
  position.textContent = interpolate(_("%(number)s of %(count)s"), {number, count});
  return [
    step(-1, _("Previous version"), "‹", "cm-previous"),
    position,
    step(1, _("Next version"), "›", "cm-following"),
  ];
}

/**
 * The notice below an older version.
 *
 * @param {() => void} showNewest
 */
export function oldNotice(showNewest) {
  const node = document.createElement("p");
  node.className = "cm-old-note";
  node.append(
    _("This is an older version."),
    " ",
    button(_("Show the newest version"), showNewest),
  );
  return node;
}

/**
 * @typedef {object} Shown
 * @property {ChatMemoryClient} client
 * @property {Map<number, number>} chosen user message → the first row of the version shown instead
 * @property {ScrollPosition} scroll
 * @property {(seq: number) => HTMLElement | undefined} nodeOf
 * @property {() => void} draw
 */

/**
 * Show another version of a turn in the same place, and focus the same button of its tools.
 *
 * @param {Shown} shown
 * @param {VersionPlace} place
 * @param {number} number
 * @param {string} buttonClass
 */
export async function showVersion(shown, {of}, number, buttonClass) {
  const {client, chosen, scroll, nodeOf, draw} = shown;
  const {from} = client.versions(of)[number - 1];
  const known = nodeOf(of);
  try {
    await Promise.all([client.fetchFrom(from), known && addStyle(known, ["element/versions.css"])]);
  } catch {
    return; // no connection; the buttons remain
  }
  const top = (/** @type {number} */ seq) => nodeOf(seq)?.getBoundingClientRect().top ?? 0;
  const before = top(chosen.get(of) ?? of);
  chosen.set(of, from);
  scroll.isPinned = false;
  draw();
  scroll.by(top(from) - before);
  scroll.update();
  const bar = nodeOf(from)?.querySelector(".cm-tools");
  bar?.scrollIntoView({block: "nearest"}); // not below the notice
  const button =
    bar?.querySelector(`.${buttonClass}:enabled`) ??
    bar?.querySelector(":is(.cm-previous, .cm-following):enabled");
  if (button instanceof HTMLElement) button.focus({preventScroll: true});
}
