// Shows the times of lists in the zone and language of the user. The server's are in its own zone.

import {showTime} from "./chat/times.js";
import {languageOf} from "./language.js";

/** @param {ParentNode} root */
export function showTimes(root) {
  for (const node of root.querySelectorAll("time")) {
    if (node.dateTime) showTime(node, node.dateTime, languageOf(document.documentElement));
  }
}

showTimes(document);
