// Shows a message of the chat in its place, and marks it: a hit of the search.

import {gettext as _} from "../shared/language.js";
import {addStyle} from "../shared/style.js";
import {dismiss, say} from "./requests.js";

/** @import {ChatMemoryClient} from "../client/chatmemory-client.js" */

const SETTLE_MS = 3_000; // replies above may still become Markdown, which moves what is below
const MAX_LOADED = 1_000; // browsers take seconds to draw more
const MAX_FRAMES = 1_000;
const MARGIN_PIXELS = 16; // above a message that is higher than the log
const USES = ["wheel", "touchstart", "pointerdown", "keydown"];

const chat = /** @type {import("../element/chat.js").ChatMemory} */ (
  document.querySelector("chat-memory")
);
let calls = 0;

const {searchParams} = new URL(location.href);
const wanted = Number(searchParams.get("at"));
if (Number.isSafeInteger(wanted) && wanted > 0) {
  // A later reload shows the newest messages.
  searchParams.delete("at");
  history.replaceState(history.state, "", `?${searchParams}`.replace(/\?$/, location.pathname));
  showMessage(wanted);
}

/**
 * Load a message with those after it, scroll to it, and mark it.
 *
 * @param {number} seq
 */
export async function showMessage(seq) {
  calls += 1;
  const call = calls;
  const client = await readyClient();
  const [shown] = await Promise.all([
    nodeOf(client, seq) ?? loadedNode(client, seq),
    addStyle(document, ["list/place.css"]),
  ]);
  if (call !== calls) return; // another message is wanted meanwhile
  if (shown) reveal(shown);
}

/** @returns {Promise<ChatMemoryClient>} */
async function readyClient() {
  await customElements.whenDefined("chat-memory");
  if (!chat.client) {
    await new Promise((resolve) =>
      chat.addEventListener("chatmemory:ready", resolve, {once: true}),
    );
  }
  return /** @type {ChatMemoryClient} */ (chat.client);
}

/**
 * The node of a message, or of the reply with the step that it is.
 *
 * @param {ChatMemoryClient} client
 * @param {number} seq
 * @returns {HTMLElement | null}
 */
function nodeOf(client, seq) {
  const own = chat.querySelector(`[data-seq="${seq}"]`);
  if (own instanceof HTMLElement && own.checkVisibility()) return own;
  if (!client.rows.has(seq)) return null;
  const before = [.../** @type {NodeListOf<HTMLElement>} */ (chat.querySelectorAll("[data-seq]"))];
  return (
    before.findLast((node) => Number(node.dataset.seq) < seq && node.checkVisibility()) ?? null
  );
}

/**
 * @param {ChatMemoryClient} client
 * @param {number} seq
 */
async function loadedNode(client, seq) {
  say(_("Loading the message…"));
  if (!(await load(client, seq))) return null;
  for (let frames = 0; frames < MAX_FRAMES; frames += 1) {
    const node = nodeOf(client, seq);
    if (node) {
      dismiss();
      return node;
    }
    await new Promise((resolve) => setTimeout(resolve, 16)); // a hidden page has no frames
  }
  say(_("This message does not exist any more."));
  return null;
}

/**
 * Load the messages from this one on; false if they can't be loaded.
 *
 * @param {ChatMemoryClient} client
 * @param {number} seq
 */
async function load(client, seq) {
  for (;;) {
    if (client.state !== "live") {
      await new Promise((resolve) => client.addEventListener("synced", resolve, {once: true}));
    }
    if (client.hasOlder && client.oldest - seq > MAX_LOADED) {
      dismiss();
      location.assign(`${chat.getAttribute("page")}${seq}/`); // its text alone
      return false;
    }
    try {
      await drawnOnce(client, () => client.fetchFrom(seq));
      return true;
    } catch (error) {
      if (/** @type {{code?: string}} */ (error)?.code === "disconnected") continue;
      say(_("The message can't be loaded. Try again in a moment."));
      return false;
    }
  }
}

/**
 * Load pages without an event for each, since after it all messages are drawn again.
 *
 * @param {ChatMemoryClient} client
 * @param {() => Promise<void>} work
 */
async function drawnOnce(client, work) {
  client.dispatchEvent = (event) =>
    event.type === "change" || EventTarget.prototype.dispatchEvent.call(client, event);
  try {
    await work();
  } finally {
    Reflect.deleteProperty(client, "dispatchEvent");
    client.dispatchEvent(new Event("change"));
  }
}

/** @param {HTMLElement} node */
function reveal(node) {
  for (const old of chat.querySelectorAll("[data-found]")) old.removeAttribute("data-found");
  node.dataset.found = "";
  const unfold = node.querySelector(".cm-fold[aria-expanded='false']");
  if (unfold instanceof HTMLElement) unfold.click();
  node.tabIndex = -1;
  node.focus({preventScroll: true});
  const log = /** @type {HTMLElement} */ (node.closest(".cm-log"));
  // Not `scrollIntoView`: it would also scroll the page.
  const show = () => {
    const above = Math.max(MARGIN_PIXELS, (log.clientHeight - node.offsetHeight) / 2);
    log.scrollTop += node.getBoundingClientRect().top - log.getBoundingClientRect().top - above;
  };
  show();
  const observer = new ResizeObserver(show);
  observer.observe(/** @type {HTMLElement} */ (node.parentElement));
  const until = new AbortController();
  until.signal.addEventListener("abort", () => observer.disconnect());
  for (const type of USES) {
    addEventListener(type, () => until.abort(), {signal: until.signal, passive: true});
  }
  setTimeout(() => until.abort(), SETTLE_MS);
}
