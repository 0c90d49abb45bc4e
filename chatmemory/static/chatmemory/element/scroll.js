// The scroll position of the log: at the newest message, or where the reader is.

/** @import {Parts} from "./skeleton.js" */

const NEAR_PIXELS = 80;

export class ScrollPosition {
  isPinned = true; // the newest message is in view, and remains there when the log grows

  #parts;
  #observer = new ResizeObserver(() => this.isPinned && this.toNewest());

  /**
   * @param {Pick<Parts, "log" | "rows" | "newer">} parts
   * @param {() => void} onTop called near the oldest message
   */
  constructor(parts, onTop) {
    this.#parts = parts;
    const {log, newer} = parts;
    newer.addEventListener("click", () => this.toNewest());
    log.addEventListener(
      "scroll",
      () => {
        this.update();
        if (log.scrollTop < NEAR_PIXELS) onTop();
      },
      {passive: true},
    );
  }

  /** Follow changes of the log's size until `stop`. */
  start() {
    this.#observer.observe(this.#parts.log);
  }

  stop() {
    this.#observer.disconnect();
  }

  /** Detect whether the newest message is in view. */
  update() {
    const {log, newer} = this.#parts;
    this.isPinned = log.scrollHeight - log.scrollTop - log.clientHeight < NEAR_PIXELS;
    newer.hidden = this.isPinned;
  }

  toNewest() {
    const {log, newer} = this.#parts;
    log.scrollTop = log.scrollHeight;
    this.isPinned = true;
    newer.hidden = true;
  }

  /** @param {number} pixels */
  by(pixels) {
    this.#parts.log.scrollTop += pixels;
  }

  /** Whether the log is shown and has room for more messages. */
  get hasRoom() {
    const {log} = this.#parts;
    return log.clientHeight > 0 && log.scrollHeight <= log.clientHeight;
  }

  /**
   * Change the log without moving the newest message if it is in view, else the topmost visible one.
   *
   * @param {() => void} change
   */
  keep(change) {
    const {log, rows} = this.#parts;
    const top = log.getBoundingClientRect().top;
    const isBelowTop = (/** @type {Element} */ node) => node.getBoundingClientRect().bottom > top;
    const anchor = this.isPinned ? undefined : [...rows.children].find(isBelowTop);
    const before = anchor?.getBoundingClientRect().top ?? 0;
    change();
    if (this.isPinned) this.toNewest();
    else if (anchor?.isConnected) this.by(anchor.getBoundingClientRect().top - before);
  }
}
