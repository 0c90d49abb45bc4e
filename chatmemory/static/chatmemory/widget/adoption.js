// After a login: asks whether the chats that this browser's visitor wrote before should move to the
// account. Nothing moves without the answer, because on a shared computer they may be another person's.

import {button} from "../element/nodes.js";
import {visible} from "../element/text.js";
import {setNoticeText, showNotice} from "./notice.js";
import {widgetWords} from "./widget-words.js";

/** @import {AdoptableSession} from "../client/rest-types.d.ts" */
/** @import {Access} from "./access.js" */

const MAX_LISTED = 5;
const DECLINED = "chatmemory:declined";

/**
 * Show the question above the messages, if there is something to ask.
 *
 * @param {HTMLElement} root
 * @param {Access} access
 * @param {{moved: () => void, answered: () => void}} then `moved` also if the server moved the chats
 *   at the login, `answered` if the focused button disappears
 */
export async function askAdoption(root, access, {moved, answered}) {
  const {visitor, sessions, done} = await access.listAdoptable();
  if (!visitor) return;
  if (done) {
    await access.adopt(visitor); // for the new keys
    moved();
  }
  if (!sessions.length || sessionStorage.getItem(DECLINED) === visitor) return;
  const move = button(widgetWords.move, async () => {
    move.disabled = true;
    try {
      await access.adopt(visitor);
      moved();
      answered();
    } catch (error) {
      console.error("chatmemory: the chats can't be moved.", error);
      move.disabled = false;
      move.focus();
      setNoticeText(notice, widgetWords.notMoved);
    }
  });
  move.className = "cm-button";
  const decline = button(widgetWords.notNow, () => {
    sessionStorage.setItem(DECLINED, visitor); // until the tab is closed
    notice.remove();
    answered();
  });
  const notice = showNotice(root, widgetWords.adopt, [...listOf(sessions), move, decline]);
}

/** @param {AdoptableSession[]} sessions */
function listOf(sessions) {
  const list = document.createElement("ul");
  for (const {title, text} of sessions.slice(0, MAX_LISTED)) {
    const item = document.createElement("li");
    item.dir = "auto";
    item.textContent = visible(title || text || widgetWords.newChat);
    list.append(item);
  }
  if (sessions.length <= MAX_LISTED) return [list];
  const more = document.createElement("p");
  more.textContent = widgetWords.andMore(sessions.length - MAX_LISTED);
  return [list, more];
}
