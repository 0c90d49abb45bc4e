// Shows the times of lists in the zone and language of the user. The server's are in its own zone.

import {languageOf} from "../shared/language.js";
import {showTime} from "../shared/times.js";

/** @param {ParentNode} root */
export function showTimes(root) {
  for (const node of root.querySelectorAll("time")) {
    if (node.dateTime) showTime(node, node.dateTime, languageOf(document.documentElement));
  }
}

showTimes(document);
