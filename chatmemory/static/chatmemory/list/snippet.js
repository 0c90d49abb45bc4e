// What a hit of the search shows, without the page.

import {gettext as _, interpolate} from "../shared/language.js";

/**
 * The parts of a snippet, in its order.
 *
 * @param {string} snippet
 * @param {number[][]} ranges where the found words are, in code points, in order
 * @returns {{text: string, isFound: boolean}[]}
 */
export function partsOf(snippet, ranges) {
  const chars = [...snippet];
  const parts = [];
  let last = 0;
  for (const [start, end] of [...ranges, [chars.length, chars.length]]) {
    parts.push({text: chars.slice(last, start).join(""), isFound: false});
    parts.push({text: chars.slice(start, end).join(""), isFound: true});
    last = end;
  }
  return parts.filter(({text}) => text);
}

/**
 * A part of a reply without the signs of Markdown that disturb most in a line.
 *
 * @param {string} text
 */
export const withoutSigns = (text) =>
  text.replace(/\*\*|`/g, "").replace(/ ?\|[ |:-]*(?=[^ |:-]|$)/g, " · ");

/**
 * Why a search failed, for people.
 *
 * @param {{code?: string, detail?: string, retry_after?: number} | null} problem
 */
export function problemText(problem) {
  switch (problem?.code) {
    case "rate_limited": {
      const seconds = Math.ceil(problem.retry_after ?? 1);
      return interpolate(_("Too many searches. Try again in %(seconds)s s."), {seconds});
    }
    case "unauthenticated":
      return _("You are signed out. Reload the page.");
    case "unavailable":
      return _("Messages can't be searched now. Try again in a moment.");
    case "empty":
      return _("This has no word to search for.");
    case "refused":
      return problem.detail ?? "";
    default:
      return _("Messages were not searched. Reload the page, and try again.");
  }
}
