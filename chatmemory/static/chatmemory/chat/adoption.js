// After a login: asks whether the chats that this browser's visitor wrote before should move to the
// account. Nothing moves without the answer, because on a shared computer they may be another person's.

import {widgetWords} from "../widget-words.js";
import {button} from "./nodes.js";
import {visible} from "./text.js";

/** @import {Access} from "./access.js" */

const MAX_LISTED = 5;
const DECLINED = "chatmemory:declined";

/**
 * Show the question above the messages, if there is something to ask.
 *
 * @param {HTMLElement} root
 * @param {Access} access
 * @param {{adopted: () => void, declined: () => void}} then
 */
export async function askAdoption(root, access, then) {
  const {visitor, sessions} = await access.listAdoptable();
  if (!visitor || !sessions.length || sessionStorage.getItem(DECLINED) === visitor) return;
  const node = document.createElement("section");
  node.className = "cm-adoption";
  const question = document.createElement("p");
  question.textContent = widgetWords.adopt;
  node.setAttribute("aria-label", widgetWords.adopt);
  const list = document.createElement("ul");
  for (const {title, text} of sessions.slice(0, MAX_LISTED)) {
    const item = document.createElement("li");
    item.dir = "auto";
    item.textContent = visible(title || text || widgetWords.newChat);
    list.append(item);
  }
  const more = document.createElement("p");
  if (sessions.length > MAX_LISTED)
    more.textContent = widgetWords.andMore(sessions.length - MAX_LISTED);
  const move = button(widgetWords.move, async () => {
    move.disabled = true;
    try {
      await access.adopt(visitor);
      then.adopted();
    } catch (error) {
      console.error("chatmemory: the chats can't be moved.", error);
      move.disabled = false;
      question.textContent = widgetWords.notMoved;
    }
  });
  move.className = "cm-button";
  const decline = button(widgetWords.notNow, () => {
    sessionStorage.setItem(DECLINED, visitor); // until the tab is closed
    node.remove();
    then.declined();
  });
  node.append(question, list, more, move, decline);
  root.querySelector(".cm-banner")?.after(node);
}
