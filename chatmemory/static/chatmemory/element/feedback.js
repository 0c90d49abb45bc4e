import {words} from "./chat-words.js";
import {iconButton} from "./nodes.js";

/** @import {ChatMemoryClient} from "../client/chatmemory-client.js" */
/** @import {MessageFrame} from "../client/types.d.ts" */

const THUMB =
  "M7 11v9H4v-9zm0 0 4-8c1.7 0 2.6 1.2 2.3 2.8L12.6 9H18a2 2 0 0 1 2 2.4l-1.3 7A2 2 0 0 1 16.7 20H7";

/**
 * The buttons that rate the turn which this row ends.
 *
 * @param {ChatMemoryClient} client
 * @param {MessageFrame & {turn: string}} row
 * @param {HTMLElement} node of the row
 */
export function ratingTools(client, row, node) {
  return /** @type {const} */ ([1, -1]).map((value) => {
    const label = value > 0 ? words.good : words.bad;
    const button = iconButton(label, THUMB, value > 0 ? "cm-good" : "cm-poor", async () => {
      const {rate} = await import("./rating.js");
      rate(client, row, node, value);
    });
    button.setAttribute("aria-pressed", String(row.feedback === value));
    button.disabled = client.state !== "live";
    return button;
  });
}
