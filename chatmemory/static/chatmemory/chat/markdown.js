// Replies as HTML that the server rendered from Markdown and sanitized. Nothing else enters the page
// as HTML.

import {MAX_RENDERED} from "../constants.js";

/** @typedef {{seq: number, revision: number, html: string}} Rendered */

export class MarkdownLoader {
  /** @type {Set<number>} */
  #wanted = new Set();
  #isLoading = false;
  #generation = 0; // counts calls of `clear`
  #page;
  #isLive;
  #onLoad;

  /**
   * @param {string | null} page address of the session's page; without it nothing is loaded
   * @param {() => boolean} isLive whether the server can be reached
   * @param {(messages: Rendered[]) => void} onLoad
   */
  constructor(page, isLive, onLoad) {
    this.#page = page;
    this.#isLive = isLive;
    this.#onLoad = onLoad;
  }

  /** @param {number} seq */
  want(seq) {
    this.#wanted.add(seq);
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
      while (this.#page && this.#wanted.size && this.#isLive()) {
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
    const response = await fetch(`${this.#page}html/?after=${oldest - 1}&before=${newest + 1}`);
    if (!response.ok || response.redirected) return false; // for example to the sign-in page
    const {messages, upto} = await response.json();
    if (generation !== this.#generation) return false;
    this.#onLoad(messages);
    // The server renders as many as its time permits, up to the number `upto`.
    for (const seq of this.#wanted) if (seq >= oldest && seq <= upto) this.#wanted.delete(seq);
    return upto >= oldest;
  }
}
