// The buttons that rate a reply.

import {words} from "../chat-words.js";
import {iconButton} from "./nodes.js";

/** @import {ChatMemoryClient} from "../chatmemory-client.js" */
/** @import {MessageFrame} from "../types.d.ts" */

const THUMB =
  "M7 11v9H4v-9zm0 0 4-8c1.7 0 2.6 1.2 2.3 2.8L12.6 9H18a2 2 0 0 1 2 2.4l-1.3 7A2 2 0 0 1 16.7 20H7";

/**
 * The buttons that rate the turn which this row ends.
 *
 * @param {ChatMemoryClient} client
 * @param {MessageFrame & {turn: string}} row
 * @param {HTMLElement} node of the row
 */
export function ratingTools(client, {seq, turn, feedback}, node) {
  return /** @type {const} */ ([1, -1]).map((value) => {
    const label = value > 0 ? words.good : words.bad;
    const className = value > 0 ? "cm-good" : "cm-poor";
    const rate = iconButton(label, THUMB, className);
    rate.setAttribute("aria-pressed", String(feedback === value));
    rate.disabled = client.state !== "live";
    rate.addEventListener("click", async () => {
      const isGiven = client.rows.get(seq)?.feedback === value;
      if (!(await put(client, node, turn, isGiven ? null : value)) || isGiven) return;
      const {askForReason} = await import("./reason.js");
      const question = value > 0 ? words.whyGood : words.whyBad;
      askForReason(node, question, (reason) => {
        close(node);
        node.querySelector(/** @type {"button"} */ (`.${className}`))?.focus();
        if (reason) put(client, node, turn, value, reason);
      });
    });
    return rate;
  });
}

/**
 * Store a rating; false, with a notice, if that failed.
 *
 * @param {ChatMemoryClient} client
 * @param {HTMLElement} node
 * @param {string} turn
 * @param {1 | -1 | null} value
 */
async function put(client, node, turn, value, reason = "") {
  close(node);
  try {
    await client.feedback(turn, value, reason);
    return true;
  } catch {
    const notice = document.createElement("p");
    notice.className = "cm-reason";
    notice.textContent = words.notRated;
    node.append(notice);
    return false;
  }
}

/** @param {HTMLElement} node */
function close(node) {
  node.querySelector(":scope > .cm-reason")?.remove();
}
