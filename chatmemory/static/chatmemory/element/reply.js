// The text of a streamed reply: finished blocks as HTML, in nodes that stay; the rest as text.

import {parse} from "../shared/html.js";
import {addCodeHeads} from "./code.js";
import {closeCode, codeFrame, openCode, setCode} from "./fences.js";
import {continued, drawOpenRows} from "./rows.js";
import {visible} from "./text.js";

/** @import {Stream} from "../client/types.d.ts" */

const BLANK_LINES = /^(?:[ \t]*(?:\r\n|[\r\n]))+/;
const MAYBE_FENCE = /^[ `~]/;
const OPEN_TABLE = /<\/t(head|r)>\n$/;
const PAUSE_MS = 1000;

export class Reply {
  /** @type {Stream | null} what `draw` shows */
  stream = null;

  #box;
  #rest = document.createElement("div");
  #text = document.createTextNode("");
  /** @type {HTMLElement | null} of the code that is open, before `#rest` */
  #frame = null;
  #source = "";
  #html = ""; // of the finished blocks
  #closed = 0; // how much of `#source` they contain
  #isEnded = false;
  #isWhole = false;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #pauseTimer;

  /** @param {HTMLElement} box */
  constructor(box) {
    this.#box = box;
    this.#rest.className = "cm-rest";
    this.#rest.append(this.#text);
    box.classList.add("cm-rich");
    box.replaceChildren(this.#rest);
  }

  /** Whether the HTML is that of the whole stored text. */
  get isWhole() {
    return this.#isWhole;
  }

  /** Show what is new. Blocks that are shown remain, also after a reconnect. */
  draw() {
    if (!this.stream || this.#isEnded) return;
    const {text, html, closed, isWhole} = this.stream;
    const known = this.#source;
    if (text !== known) this.#awaitPause();
    const before = known.slice(0, this.#closed);
    this.#source = text;
    this.#isWhole = isWhole;
    // After a reconnect, the text can be shorter for a moment.
    if (!text.startsWith(before) && !before.startsWith(text)) this.#clear();
    if (!this.#html.startsWith(html)) {
      if (!html.startsWith(this.#html)) this.#clear();
      this.#append(html);
      this.#closed = closed;
    } else if (this.#isPlain && text.startsWith(known)) {
      this.#text.appendData(visible(text.slice(known.length)));
      return;
    }
    this.#drawRest();
  }

  /**
   * Show the stored text; false if the blocks do not belong to it.
   *
   * @param {string} text
   */
  end(text) {
    if (this.#isEnded) return text === this.#source;
    this.draw();
    clearTimeout(this.#pauseTimer);
    this.#isEnded = true;
    const known = this.#source.slice(0, this.#closed);
    if (!(this.#html || this.#frame) || !(this.#isWhole || text.startsWith(known))) return false;
    this.#source = text;
    if (this.#isWhole) this.#rest.remove();
    else this.#drawRest();
    return true;
  }

  /**
   * Show the HTML of the stored text. Only blocks that a later definition has changed are replaced.
   *
   * @param {string} html
   * @param {string} text
   */
  complete(html, text) {
    this.#isEnded = this.#isWhole = true;
    this.#source = text;
    this.#box.append(this.#rest);
    if (html.startsWith(this.#html)) this.#append(html);
    this.#rest.remove();
    this.#frame?.remove();
    if (this.#html === html) return;
    const shown = [...this.#box.children];
    for (const [index, node] of parsed(html).entries()) {
      if (!shown[index]) this.#box.append(node);
      else if (!shown[index].isEqualNode(node)) shown[index].replaceWith(node);
    }
  }

  /** @param {string} html which begins with `#html` */
  #append(html) {
    const added = html.slice(this.#html.length);
    const table = this.#table;
    const nodes = table ? continued(table, added, parsed) : parsed(added);
    if (this.#frame && nodes.length) {
      if (nodes[0].matches(".cm-code"))
        closeCode(this.#frame, /** @type {Element} */ (nodes.shift()));
      else this.#frame.remove();
      this.#frame = null;
    }
    this.#rest.before(...nodes);
    this.#html = html;
  }

  /** The table in which `#html` ends. */
  get #table() {
    if (!OPEN_TABLE.test(this.#html)) return null;
    return (this.#frame ?? this.#rest).previousElementSibling;
  }

  /** Whether the rest is only text, and remains so when it grows. */
  get #isPlain() {
    return this.#text.length && !this.#table && !this.#frame && !MAYBE_FENCE.test(this.#text.data);
  }

  // Only while no text arrives: an animation is drawn 60 times in a second.
  #awaitPause() {
    const {classList} = this.#rest;
    clearTimeout(this.#pauseTimer);
    classList.remove("cm-paused");
    this.#pauseTimer = setTimeout(() => classList.add("cm-paused"), PAUSE_MS);
  }

  #clear() {
    this.#html = "";
    this.#closed = 0;
    this.#frame = null;
    this.#box.replaceChildren(this.#rest);
  }

  #drawRest() {
    const rest = visible(this.#source.slice(this.#closed).replace(BLANK_LINES, ""));
    const table = this.#table;
    this.#text.data = this.#drawCode(table ? drawOpenRows(table, rest) : rest);
  }

  /**
   * Show the code with which a text begins; return the rest of the text.
   *
   * @param {string} text
   */
  #drawCode(text) {
    const open = openCode(text, this.#isEnded);
    if (!open?.isBegun) {
      this.#frame?.remove();
      this.#frame = null;
      return open && !this.#isEnded ? "" : text; // its first line is not complete
    }
    if (!this.#frame) {
      this.#frame = codeFrame(open.language);
      this.#rest.before(this.#frame);
    }
    setCode(this.#frame, open.code);
    return open.rest;
  }
}

/** @param {string} html */
function parsed(html) {
  const content = parse(html);
  addCodeHeads(content);
  return [...content.children];
}
