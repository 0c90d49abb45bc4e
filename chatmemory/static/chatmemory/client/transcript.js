// The received data of a session: its head, its rows and the texts of running turns.

/** @import {BlockFrame, DeltaFrame, MessageFrame, ProgressEvent, SessionFrame, SnapshotFrame, Stream} from "./types.d.ts" */

const FINAL_STATES = new Set(["ended", "failed"]); // of a progress event

export class Transcript {
  /** @type {SessionFrame | null} */
  session = null;
  /** @type {Map<number, MessageFrame>} */
  rows = new Map();
  /** @type {Map<string, Stream>} by `streamKey` */
  streams = new Map();
  /** @type {ProgressEvent[]} what the run does besides writing text */
  activity = [];
  generation = 0; // counts calls of `clear`; the answer to an older request is then ignored

  /** @type {Set<string>} */
  #storedSteps = new Set();

  // Infinity if there are no rows.
  get oldest() {
    return Math.min(...this.rows.keys());
  }

  get hasOlder() {
    return this.session !== null && this.rows.size > 0 && this.oldest > this.session.first_seq;
  }

  /** How many turns run and wait. */
  get turnCount() {
    return (this.session?.running ? 1 : 0) + (this.session?.waiting?.length ?? 0);
  }

  clear() {
    this.generation += 1;
    this.activity = [];
    this.rows.clear();
    this.streams.clear();
    this.#storedSteps.clear();
  }

  /**
   * Replace the session; false if the frame is older than the session that is known.
   *
   * @param {SessionFrame} frame
   */
  putSession(frame) {
    const known = this.session;
    // Revisions can be compared only within one epoch: after a restore of the database, an older
    // revision number can be newer.
    if (known && known.epoch === frame.epoch && known.revision > frame.revision) return false;
    this.session = frame;
    for (const seq of this.rows.keys()) if (seq < frame.first_seq) this.rows.delete(seq);
    const turn = frame.running?.turn;
    for (const [key, stream] of this.streams) if (stream.turn !== turn) this.streams.delete(key);
    if (known?.running?.turn !== turn) this.activity = [];
    return true;
  }

  /**
   * Add or replace a row. Ends the streamed text of its step.
   *
   * @param {MessageFrame} frame
   */
  putRow(frame) {
    const known = this.rows.get(frame.seq);
    if (known && known.revision > frame.revision) return;
    if (this.session && frame.seq < this.session.first_seq) return;
    this.rows.set(frame.seq, frame);
    if (frame.turn != null && frame.step != null) {
      const key = streamKey(frame);
      this.#storedSteps.add(key);
      this.streams.delete(key);
    }
  }

  /**
   * Set or append streamed text. `isChanged`: the page must be drawn again; `textChange`: the
   * changed text and the appended piece, which is null if the whole text is new.
   *
   * @param {SnapshotFrame | DeltaFrame} frame
   * @returns {{isChanged: boolean, textChange: {key: string, piece: string | null} | null}}
   */
  putText(frame) {
    if (frame.type === "snapshot") this.activity = [];
    if (frame.event) this.#putEvent(frame.event);
    const isChanged = Boolean(frame.event);
    const key = streamKey(frame);
    // A delta can arrive after the row of its step: they are sent by different paths.
    if (!frame.text || this.#storedSteps.has(key)) return {isChanged, textChange: null};
    const known = this.streams.get(key);
    const isNew = !known || frame.type === "snapshot";
    const {turn, step} = frame;
    if (isNew) {
      const noBlocks = {html: "", closed: 0, closedChars: 0, isWhole: false};
      this.streams.set(key, {key, turn, step, text: frame.text, ...noBlocks});
    } else known.text += frame.text;
    const others = this.activity.filter(({kind}) => kind !== "thinking");
    const wasThinking = others.length < this.activity.length;
    if (wasThinking) this.activity = others;
    return {
      isChanged: isChanged || isNew || wasThinking,
      textChange: {key, piece: isNew ? null : frame.text},
    };
  }

  /**
   * Append finished blocks to a streamed text; false if they do not follow the known ones.
   *
   * @param {BlockFrame} frame
   */
  putBlock({start, end, html, last = false, ...frame}) {
    const stream = this.streams.get(streamKey(frame));
    if (!stream || stream.closedChars !== start) return false;
    stream.closed = indexAfter(stream.text, stream.closed, end - start);
    stream.closedChars = end;
    stream.html += html;
    stream.isWhole = last;
    return true;
  }

  // Events have no id: if a tool is called in parallel, the first call that ends removes the line.
  /** @param {ProgressEvent} event */
  #putEvent(event) {
    const others = this.activity.filter(
      ({kind, name}) => kind !== event.kind || name !== event.name,
    );
    this.activity = FINAL_STATES.has(event.state) ? others : [...others, event];
  }
}

/**
 * The index that is a number of code points, as the server counts, after another.
 *
 * @param {string} text
 * @param {number} index
 * @param {number} chars
 */
function indexAfter(text, index, chars) {
  let end = index;
  for (let left = chars; left > 0 && end < text.length; left -= 1) {
    end += /** @type {number} */ (text.codePointAt(end)) > 0xffff ? 2 : 1;
  }
  return end;
}

/** @param {{turn: string | null, step: number | null}} row */
export function streamKey({turn, step}) {
  return `${turn}:${step}`;
}
