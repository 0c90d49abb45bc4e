// Messages with the words of the search, below the chats with them in their titles. Loaded where the
// site has the search of messages.

import {gettext as _, languageOf, ngettext} from "../shared/language.js";
import {addStyle} from "../shared/style.js";
import {showTime} from "../shared/times.js";
import {list, openKey, search} from "./marks.js";
import {partsOf, problemText, withoutSigns} from "./snippet.js";

const DELAY_MS = 400; // the server limits the searches of a minute
const MIN_CHARS = 2;
const LIMIT = 20;

/** @typedef {{session: string, title: string, seq: number, role: string, at: string, snippet: string, ranges: number[][]}} Hit */
/** @typedef {{hits: Hit[], partial: boolean, cursor: string | null}} Page */

const section = document.createElement("section");
const heading = document.createElement("h2");
const status = document.createElement("p");
const hits = document.createElement("ul");
const older = document.createElement("button");

let address = "";
/** What was searched for the hits that are shown; empty for nothing. */
let shownText = "";
/** @type {string | null} */
let cursor = null;
let isBusy = false; // one request after another: the server makes searches of a person wait
/** @type {ReturnType<typeof setTimeout> | undefined} */
let timer;

/** @param {string} url of the search over REST */
export async function start(url) {
  address = url;
  heading.id = "cm-found";
  heading.textContent = _("Messages");
  section.className = "cm-found";
  toggle(false);
  status.setAttribute("role", "status");
  hits.className = "cm-list";
  older.type = "button";
  older.className = "cm-more cm-link";
  section.append(heading, status, hits, older);
  await addStyle(document, ["list/found.css"]);
  list.after(section);
  search.addEventListener("input", later);
  // Before the listener of the document, for which this button is the link to more chats.
  older.addEventListener("click", (event) => {
    event.stopPropagation();
    more();
  });
  hits.addEventListener("click", open);
  later();
}

// Not the whole section: screen readers announce only what changes in a status that is shown.
/** @param {boolean} isShown */
function toggle(isShown) {
  heading.hidden = !isShown;
  if (isShown) section.setAttribute("aria-labelledby", heading.id);
  else section.removeAttribute("aria-labelledby");
  older.hidden = !isShown;
}

const textOf = () => search.value.trim();

function later() {
  clearTimeout(timer);
  const text = textOf();
  section.classList.toggle("cm-stale", text !== shownText);
  if (text === shownText) return;
  if ([...text].length < MIN_CHARS) return clear();
  timer = setTimeout(run, DELAY_MS);
}

function clear() {
  shownText = "";
  toggle(false);
  status.textContent = "";
  hits.replaceChildren();
}

async function run() {
  const text = textOf();
  const page = await ask(text, null);
  if (!page || text !== textOf()) return; // the next search has begun, or follows
  shownText = text;
  section.classList.remove("cm-stale");
  hits.replaceChildren();
  show(page);
}

async function more() {
  const text = shownText;
  const hadFocus = older === document.activeElement;
  const page = await ask(text, cursor);
  if (!page || text !== shownText) return;
  const first = show(page);
  if (hadFocus) (first ?? (older.hidden ? search : older)).focus();
}

/**
 * Search; null if another search runs, after whose end this one is no longer wanted or begins.
 *
 * @param {string} query
 * @param {string | null} from the cursor
 * @returns {Promise<Page | {problem: string} | null>}
 */
async function ask(query, from) {
  if (isBusy) return null;
  isBusy = true;
  section.setAttribute("aria-busy", "true");
  try {
    return await post({query, mode: "prefix", limit: LIMIT, cursor: from});
  } finally {
    isBusy = false;
    section.removeAttribute("aria-busy");
    if (textOf() !== query) later();
  }
}

/**
 * @param {object} body
 * @returns {Promise<Page | {problem: string}>}
 */
async function post(body) {
  const token = document.querySelector("#cm-action [name='csrfmiddlewaretoken']");
  const headers = {
    Accept: "application/json",
    "Content-Type": "application/json",
    "X-CSRFToken": token instanceof HTMLInputElement ? token.value : "",
  };
  try {
    const options = {method: "POST", headers, body: JSON.stringify(body)};
    const response = await fetch(address, {...options, cache: "no-store", redirect: "error"});
    const answer = await response.json().catch(() => null);
    return response.ok && answer ? answer : {problem: problemText(answer)};
  } catch {
    return {problem: _("No connection, so messages were not searched.")};
  }
}

/**
 * Add the hits of a page; return the link of the first.
 *
 * @param {Page | {problem: string}} page
 */
function show(page) {
  toggle(true);
  if ("problem" in page) {
    status.textContent = page.problem;
    older.hidden = !hits.firstChild; // else it tries again
    if (older.hidden) shownText = ""; // the next input searches again
    return undefined;
  }
  const rows = page.hits.map(rowOf);
  hits.append(...rows);
  cursor = page.cursor;
  older.hidden = !cursor;
  older.textContent = page.partial ? _("Search older messages") : _("More messages");
  status.textContent = statusOf(hits.childElementCount, page.partial);
  return rows[0]?.querySelector("a");
}

/**
 * @param {number} count
 * @param {boolean} isPartial
 */
function statusOf(count, isPartial) {
  if (count) return ngettext("%(count)s message found", "%(count)s messages found", count);
  return isPartial ? _("No newer message has these words.") : _("No message has these words.");
}

/** @param {Hit} hit */
function rowOf({session, title, seq, role, at, snippet, ranges}) {
  const row = document.createElement("li");
  const link = document.createElement("a");
  const base = new URL(list.dataset.url ?? "", location.href);
  link.href = new URL(`../${encodeURIComponent(session)}/?at=${seq}`, base).href;
  link.dataset.session = session;
  link.dataset.at = String(seq);
  const text = element("span", "cm-snippet");
  for (const part of partsOf(snippet, ranges)) {
    if (part.isFound) text.append(element("mark", "", part.text));
    else text.append(role === "user" ? part.text : withoutSigns(part.text));
  }
  const about = element("span", "cm-about", authorOf(role));
  about.append(" · ", timeOf(at));
  link.append(element("span", "cm-title", title || _("New chat")), text, about);
  row.append(link);
  return row;
}

/**
 * The time of today, else the date, since a line has no room for both.
 *
 * @param {string} at
 */
function timeOf(at) {
  const language = languageOf(document.documentElement);
  const node = showTime(document.createElement("time"), at, language);
  const date = new Date(at);
  if (date.toDateString() !== new Date().toDateString()) {
    node.textContent = date.toLocaleDateString(language, {dateStyle: "medium"});
  }
  return node;
}

/**
 * @param {string} name
 * @param {string} className
 * @param {string} text
 */
function element(name, className, text = "") {
  const node = document.createElement(name);
  node.className = className;
  node.textContent = text;
  node.dir = "auto";
  return node;
}

/** @param {string} role */
function authorOf(role) {
  if (role === "user") return _("You");
  return role === "tool" ? _("Tool") : _("Assistant");
}

// A message of the chat on this page is shown without loading the page again.
/** @param {MouseEvent} event */
async function open(event) {
  const {target, ctrlKey, metaKey, shiftKey} = event;
  const link = target instanceof Element && target.closest("a");
  if (!link || link.dataset.session !== openKey || ctrlKey || metaKey || shiftKey) return;
  event.preventDefault();
  const module = await import("./place.js").catch(() => null);
  if (!module) return location.assign(link.href);
  const closer = document.querySelector("#cm-aside.cm-drawn .cm-drawer-closer");
  if (closer instanceof HTMLElement) closer.click();
  module.showMessage(Number(link.dataset.at));
}
