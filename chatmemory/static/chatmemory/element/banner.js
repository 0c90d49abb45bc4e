// The state of the connection and of the session, in one sentence above the messages.

import {
  CLOSE_NOT_FOUND,
  CLOSE_TOO_MANY_CONNECTIONS,
  CLOSE_UNAUTHENTICATED,
} from "../shared/constants.js";
import {words} from "./chat-words.js";

/** @import {ConnectionState, Ending, SessionFrame} from "../client/types.d.ts" */

/** @typedef {{text: string, action?: string}} Banner */

/**
 * The sentence, empty if everything is usual, and the label of a button.
 *
 * @param {{state: ConnectionState, ending: Ending | null, session: SessionFrame | null, lost: number | null}} client
 * @param {{isOnline: boolean, hasDetails: boolean}} page
 * @returns {Banner}
 */
export function bannerOf({state, ending, session, lost}, {isOnline, hasDetails}) {
  if (ending?.code === CLOSE_NOT_FOUND && lost)
    return {text: words.messagesLost(lost), action: words.reload};
  if (state === "ended") return endedBanner(ending, hasDetails);
  // A live socket is more reliable than the browser's guess.
  if (!isOnline && state !== "live") return {text: words.offline};
  if (state === "waiting") return {text: wordsFor(words.pauses, ending) ?? words.lost};
  if (state === "connecting") return {text: session ? words.lost : words.connecting};
  if (lost !== 0) return {text: words.messagesLost(lost), action: words.dismiss};
  if (session?.archived) return {text: words.archived};
  if (session?.live === false) return {text: words.delayed};
  return {text: ""};
}

/**
 * @param {Ending | null} ending
 * @param {boolean} hasDetails
 */
function endedBanner(ending, hasDetails) {
  const text = ending?.message ?? wordsFor(words.ended, ending) ?? words.ended.other;
  const details = ending?.code === "refused" && hasDetails ? ` ${ending.reason}` : "";
  /** @type {Record<string, string>} */
  const actions = {
    [CLOSE_UNAUTHENTICATED]: words.signIn,
    [CLOSE_TOO_MANY_CONNECTIONS]: words.continueHere,
  };
  return {text: text + details, action: wordsFor(actions, ending) ?? words.reload};
}

/**
 * @param {Record<string, string>} texts
 * @param {Ending | null} ending
 * @returns {string | undefined}
 */
function wordsFor(texts, ending) {
  return ending ? (texts[ending.reason] ?? texts[ending.code]) : undefined;
}
