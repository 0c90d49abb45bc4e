// Replies as HTML that the server rendered from Markdown and sanitized. Nothing else enters the page
// as HTML.

import {MAX_RENDERED} from "../shared/constants.js";

/** @typedef {{seq: number, revision: number, html: string}} Rendered */

/** @typedef {{messages: Rendered[], upto: number}} Page its messages, up to the number `upto` */
/** @typedef {(after: number, before: number) => Promise<Page | null>} Load null if refused */

export class MarkdownLoader {
  /** @type {Set<number>} */
  #wanted = new Set();
  #isLoading = false;
  #generation = 0; // counts calls of `clear`
  #source;
  #isLive;
  #onLoad;

  /**
   * @param {Load | string | null} source the address of the page, or another source; without one,
   *   replies remain plain text
   * @param {() => boolean} isLive whether the server can be reached
   * @param {(messages: Rendered[]) => void} onLoad
   */
  constructor(source, isLive, onLoad) {
    this.#source = typeof source === "string" ? pageLoader(source) : source;
    this.#isLive = isLive;
    this.#onLoad = onLoad;
  }

  /** @param {number} seq */
  want(seq) {
    if (this.#source) this.#wanted.add(seq);
  }

  /** Forget all messages; after a reset their numbers may belong to others. */
  clear() {
    this.#generation += 1;
    this.#wanted.clear();
  }

  /** Load what is wanted, the newest first. Failed requests are repeated by the next call. */
  async load() {
    if (this.#isLoading) return;
    this.#isLoading = true;
    try {
      while (this.#wanted.size && this.#isLive()) {
        if (!(await this.#loadNewest())) return;
      }
    } catch {
      // No connection.
    } finally {
      this.#isLoading = false;
    }
  }

  /** Whether it is useful to load more. */
  async #loadNewest() {
    const generation = this.#generation;
    const newest = Math.max(...this.#wanted);
    const oldest = Math.max(Math.min(...this.#wanted), newest - MAX_RENDERED + 1);
    const loaded = await this.#source?.(oldest - 1, newest + 1);
    if (!loaded) return false;
    const {messages, upto} = loaded;
    if (generation !== this.#generation) return false;
    this.#onLoad(messages);
    // The server renders as many as its time permits, up to the number `upto`.
    for (const seq of this.#wanted) if (seq >= oldest && seq <= upto) this.#wanted.delete(seq);
    return upto >= oldest;
  }
}

/** @type {(page: string) => Load} */
function pageLoader(page) {
  return async (after, before) => {
    const response = await fetch(`${page}html/?after=${after}&before=${before}`);
    // A redirect is one to the sign-in page, for example.
    return response.ok && !response.redirected ? response.json() : null;
  };
}
