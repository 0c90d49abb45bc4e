import {BLANKS, HIDDEN, MARKUP} from "../shared/constants.js";
import {words} from "./chat-words.js";

/** @import {MessageFrame, ProgressEvent} from "../client/types.d.ts" */

const HIDDEN_RUN = new RegExp(`([${HIDDEN}])\\1*`, "gu");
const BLANK_TEXT = new RegExp(`^[\\s\\p{Cf}${BLANKS}]*$`, "u");
const MARKUP_SIGN = new RegExp(MARKUP, "u");

/**
 * Replace characters that change the direction of text, or that are invisible, by marks.
 *
 * @param {string} text
 */
export function visible(text) {
  return text.replace(HIDDEN_RUN, (run, char) => {
    const count = [...run].length;
    const code = char.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
    return `⟦U+${code}${count > 1 ? ` ×${count}` : ""}⟧`;
  });
}

/**
 * Whether a text has no visible character; the server refuses such a message.
 *
 * @param {string} text
 */
export function isBlank(text) {
  return BLANK_TEXT.test(text);
}

/**
 * Whether a text looks different as Markdown.
 *
 * @param {string} text
 */
export function hasMarkup(text) {
  return MARKUP_SIGN.test(text);
}

/**
 * By how many characters a text exceeds a limit; negative if it fits. The server counts code points;
 * JavaScript's `length` counts some of them as two.
 *
 * @param {string} text
 * @param {number} limit
 */
export function excessChars(text, limit) {
  return text.length <= limit ? text.length - limit : [...text].length - limit;
}

/**
 * The beginning of a text in one line, cut between words.
 *
 * @param {string} text
 */
export function firstWords(text, maxChars = 60) {
  const line = text.split(/\s+/).filter(Boolean).join(" ");
  if (line.length <= maxChars) return line;
  const end = line.slice(0, maxChars + 1).lastIndexOf(" ");
  return `${line.slice(0, end > 0 ? end : maxChars)}…`;
}

/** @param {ProgressEvent} event */
export function activityText({kind, name, state}) {
  const text = kind === "tool" && name ? words.usingTool(visible(name)) : words.thinking;
  return !state || state === "started" ? text : `${text} ${visible(state)}`;
}

/** @param {MessageFrame | undefined} row */
export function isQuestion(row) {
  return row?.role === "assistant" && row.asks != null;
}
