// Updates the list in place, from the list that the server renders.

import {arrange} from "../shared/arrange.js";
import {parse} from "../shared/html.js";
import {list, mark, openKey, search} from "./marks.js";
import {showTimes} from "./times.js";

const DELAY_MS = 150; // several changes are loaded together

/** @type {ReturnType<typeof setTimeout> | undefined} */
let timer;
/** @type {Promise<void>} the last of the loads, which wait for each other */
let last = Promise.resolve();
let known = {url: "", etag: ""};
let holds = 0;
let isStale = false;

/** What was searched for the list that is shown. */
export let shownText = search.defaultValue.trim();

/** Load the list again, soon. */
export function refresh() {
  clearTimeout(timer);
  timer = setTimeout(() => inTurn(update), DELAY_MS);
}

/** Load the next page. */
export const onClick = () => inTurn(more);

/** Keep the list as it is, while a part of it is in use, until `release`. */
export function hold() {
  holds += 1;
}

export function release() {
  holds -= 1;
  if (holds > 0 || !isStale) return;
  isStale = false;
  refresh();
}

/** @param {() => Promise<void>} load */
function inTurn(load) {
  last = last.then(load, load);
  return last;
}

async function update() {
  const text = search.value.trim();
  const url = new URL(list.dataset.url ?? "", location.href);
  url.searchParams.set("shown", String(datedRows(list).length));
  if (text) url.searchParams.set("title", text);
  else url.searchParams.delete("title");
  const content = await fetchList(url);
  if (!content) return;
  shownText = text;
  const shown = datedRows(list);
  const count = datedRows(content).length;
  const link = content.querySelector(".cm-more");
  // The server limits its answer: the rows below it, and the link to those after them, stay.
  const isCut = link && count < shown.length;
  if (isCut) link.setAttribute("href", linkToMore()?.href ?? "");
  show(content, [...rowsIn(content), ...(isCut ? shown.slice(count) : [])]);
}

async function more() {
  const link = linkToMore();
  const content = link && (await fetchList(new URL(link.href)));
  if (!content) return;
  const hadFocus = link === document.activeElement;
  const fresh = rowsIn(content);
  show(content, [...rowsIn(list), ...fresh]);
  if (hadFocus) fresh[0]?.querySelector("a")?.focus();
}

/**
 * @param {URL} url
 * @returns {Promise<DocumentFragment | undefined>} nothing if the list is the same, or cannot change now
 */
async function fetchList(url) {
  isStale = holds > 0;
  if (isStale) return undefined;
  url.searchParams.set("part", "");
  const headers = {"If-None-Match": known.url === url.href ? known.etag : ""};
  try {
    // Without redirects: a person who is signed out is sent to another page.
    const response = await fetch(url, {headers, cache: "no-store", redirect: "error"});
    const html = await response.text();
    isStale = holds > 0;
    if (isStale || !response.ok) return undefined;
    known = {url: url.href, etag: response.headers.get("ETag") ?? ""};
    const content = parse(html);
    showTimes(content);
    return content;
  } catch {
    return undefined; // no connection: the list is loaded again when the page gets the focus
  }
}

/**
 * Show these rows in their groups, and what else the new list has.
 *
 * @param {DocumentFragment} content
 * @param {HTMLElement[]} rows
 */
function show(content, rows) {
  const focused = document.activeElement;
  const shown = new Map(rowsIn(list).map((row) => [row.dataset.key, row]));
  /** @type {Map<Element, Set<HTMLElement>>} */
  const groups = new Map();
  for (const row of rows) {
    const fresh = groupOf(row);
    const group = list.querySelector(`section[data-group="${fresh.dataset.group}"]`) ?? fresh;
    const known = shown.get(row.dataset.key) ?? row;
    if (known !== row) setContent(known, row);
    groups.set(group, (groups.get(group) ?? new Set()).add(known));
  }
  const link = content.querySelector("a.cm-more");
  const oldLink = linkToMore();
  if (link instanceof HTMLAnchorElement && oldLink) {
    oldLink.href = link.href;
    link.replaceWith(oldLink);
  }
  const others = [...content.children].filter((node) => node.localName !== "section");
  for (const [group, members] of groups) {
    arrange(/** @type {Element} */ (group.querySelector("ul")), [...members]);
  }
  arrange(list, [...groups.keys(), ...others]);
  if (focused instanceof HTMLElement && focused.isConnected) focused.focus({preventScroll: true});
  showOpen(shown.get(openKey));
  mark();
}

/**
 * Give a row the content of another one. Its link and its button stay, so that they keep the focus.
 *
 * @param {HTMLElement} row
 * @param {HTMLElement} other
 */
function setContent(row, other) {
  setData(row, other);
  const [link, otherLink] = [row.querySelector("a"), other.querySelector("a")];
  if (link && otherLink && link.innerHTML !== otherLink.innerHTML) {
    link.replaceChildren(...otherLink.childNodes);
  }
  const label = other.querySelector("button")?.getAttribute("aria-label") ?? "";
  row.querySelector("button")?.setAttribute("aria-label", label);
}

/**
 * @param {HTMLElement} node
 * @param {HTMLElement} other
 */
function setData(node, other) {
  for (const name of Object.keys(node.dataset)) delete node.dataset[name];
  Object.assign(node.dataset, other.dataset);
}

/**
 * Show the chat of this page: in the list or else above it, and in its heading.
 *
 * @param {HTMLElement | undefined} oldRow the row that it had in the list
 */
function showOpen(oldRow) {
  const heading = document.querySelector(".cm-heading");
  const above = document.querySelector(".cm-open");
  if (!(heading instanceof HTMLElement && above instanceof HTMLElement)) return;
  const row = rowsIn(list).find(({dataset}) => dataset.key === openKey);
  if (row) above.replaceChildren();
  else if (oldRow) above.replaceChildren(oldRow);
  above.hidden = search.value !== "";
  if (!row) return;
  row.querySelector("a")?.setAttribute("aria-current", "page");
  setData(heading, row);
  heading.querySelector(".cm-options")?.removeAttribute("hidden");
}

/**
 * @param {ParentNode} root
 * @returns {HTMLElement[]}
 */
const rowsIn = (root) => [...root.querySelectorAll("li")];

/**
 * The rows that the server counts: each first page has all pinned chats.
 *
 * @param {ParentNode} root
 */
const datedRows = (root) => rowsIn(root).filter((row) => groupOf(row).dataset.group !== "pinned");

/** @param {HTMLElement} row */
const groupOf = (row) => /** @type {HTMLElement} */ (row.closest("section"));

const linkToMore = () => /** @type {HTMLAnchorElement | null} */ (list.querySelector("a.cm-more"));
