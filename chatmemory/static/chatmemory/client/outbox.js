// The unacknowledged messages. Only one is in flight at a time, so they arrive in order.

import {CLOSE_TOO_LARGE} from "../shared/constants.js";
import {randomId} from "./ids.js";

/** @import {ClientOptions, ErrorFrame, Failure, OkFrame, OutboxEntry, RequestFrame, SendFrame} from "./types.d.ts" */

const FIRST_HOLD_MS = 1_000;
const MAX_HOLD_MS = 30_000;
const HOLD_JITTER_MS = 250;
const ID_BYTES = 40; // of JSON, for the id that the request adds to the frame

/**
 * What the outbox needs from the client.
 *
 * @typedef {object} Host
 * @property {() => boolean} isReady whether frames can be sent
 * @property {() => number | undefined} epoch
 * @property {() => number} newestUserSeq
 * @property {() => number} turnCount
 * @property {() => number | undefined} maxFrameBytes
 * @property {(frame: RequestFrame) => Promise<OkFrame>} request
 * @property {() => void} onChange
 */

export class Outbox {
  /** @type {OutboxEntry[]} */
  entries = [];

  #host;
  #storage;
  #storageKey;
  /** @type {OutboxEntry | null} the entry that waits for its answer */
  #sending = null;
  /** @type {string | null} the error code because of which sending pauses */
  #heldFor = null;
  #heldTurnCount = 0; // how many turns ran and waited when the pause began
  #holds = 0;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #holdTimer;

  /**
   * @param {Host} host
   * @param {NonNullable<ClientOptions["storage"]> | null} storage
   * @param {string} storageKey
   */
  constructor(host, storage, storageKey) {
    this.#host = host;
    this.#storage = storage;
    this.#storageKey = storageKey;
    this.#restore();
  }

  /** @param {Omit<OutboxEntry, "client_id" | "epoch" | "state">} fields */
  add(fields) {
    /** @type {OutboxEntry} */
    const entry = {client_id: randomId(), ...fields, epoch: this.#host.epoch(), state: "new"};
    this.entries.push(entry);
    this.#save();
    this.dispatch();
    return entry;
  }

  /** @param {string} clientId */
  retry(clientId) {
    const entry = this.#find(clientId);
    if (entry?.state !== "failed") return;
    // After other refusals the message may be stored, and only its client_id prevents a duplicate.
    if (entry.code === "history_cleared" || entry.code === "conflict") this.#renew(entry);
    entry.state = "new";
    delete entry.code;
    delete entry.message;
    this.#save();
    this.dispatch();
  }

  // Make it a new message that fits the session as it is now.
  /** @param {OutboxEntry} entry */
  #renew(entry) {
    entry.client_id = randomId();
    entry.epoch = this.#host.epoch();
    if (entry.code === "history_cleared") delete entry.replaces; // that message was removed
    if (entry.replaces == null) delete entry.expect_seq;
    else entry.expect_seq = this.#host.newestUserSeq();
  }

  /**
   * Drop an entry; false if it may be in flight.
   *
   * @param {string} clientId
   */
  discard(clientId) {
    const entry = this.#find(clientId);
    if (!entry || entry === this.#sending || entry.state === "stored") return false;
    if (entry.state === "sent" && !this.#host.isReady()) return false;
    this.#drop(entry);
    return true;
  }

  /** Send the first unsent entry, unless another one is in flight or sending pauses. */
  dispatch() {
    const entry = this.entries.find(({state}) => state !== "failed" && state !== "stored");
    if (!entry || this.#sending || this.#heldFor || !this.#host.isReady()) return;
    const frame = frameOf(entry);
    if (this.#isTooLarge(frame)) {
      this.#fail(entry, tooLarge());
      this.dispatch();
      return;
    }
    this.#sending = entry;
    entry.state = "sent";
    this.#host.onChange();
    this.#host.request(frame).then(
      ({duplicate}) => this.#onStored(entry, Boolean(duplicate)),
      (failure) => this.#onRefused(entry, failure),
    );
  }

  /**
   * Forget which entry is in flight; it is sent again after the next `synced`.
   *
   * @param {number | "refused" | null} code
   */
  onDisconnect(code) {
    const entry = this.#sending;
    this.#sending = null;
    this.#resume();
    // A server that closes for a frame's size would do so again.
    if (entry && code === CLOSE_TOO_LARGE) this.#fail(entry, tooLarge());
  }

  /** @param {ErrorFrame} error of the session, which is not created */
  refuseAll(error) {
    for (const entry of this.entries) this.#fail(entry, error);
  }

  /** Resend an entry that a full queue refused, when there are fewer turns than at the refusal. */
  onTurnCount() {
    if (this.#heldFor !== "busy" && this.#heldFor !== "queue_full") return;
    const count = this.#host.turnCount();
    const isLess = count < this.#heldTurnCount;
    this.#heldTurnCount = count;
    if (!isLess) return;
    this.#resume();
    this.dispatch();
  }

  /** Drop acknowledged entries: after `synced` each has a row or a waiting turn. */
  dropStored() {
    const count = this.entries.length;
    this.entries = this.entries.filter(({state}) => state !== "stored");
    return this.entries.length < count;
  }

  /**
   * @param {OutboxEntry} entry
   * @param {boolean} isDuplicate
   */
  #onStored(entry, isDuplicate) {
    this.#sending = null;
    this.#holds = 0;
    if (isDuplicate) {
      this.#drop(entry);
    } else {
      entry.state = "stored"; // shown until its row or its waiting turn arrives
      this.#save();
    }
    this.dispatch();
  }

  /**
   * @param {OutboxEntry} entry
   * @param {Failure} failure
   */
  #onRefused(entry, failure) {
    if (failure.code === "disconnected") return;
    this.#sending = null;
    const failsIfBusy = entry.if_busy === "reject" || entry.replaces != null;
    if (failure.retry && !(failure.code === "busy" && failsIfBusy)) this.#hold(entry, failure);
    else this.#fail(entry, failure);
    this.dispatch();
  }

  /**
   * @param {OutboxEntry} entry
   * @param {Failure} failure
   */
  #hold(entry, {code, message, retry_after_ms: retryAfterMs}) {
    Object.assign(entry, {state: "held", code, message});
    this.#heldFor = code;
    this.#heldTurnCount = this.#host.turnCount();
    const backoff = Math.min(MAX_HOLD_MS, FIRST_HOLD_MS * 2 ** this.#holds++);
    clearTimeout(this.#holdTimer);
    this.#holdTimer = setTimeout(
      () => {
        this.#resume();
        this.dispatch();
      },
      (retryAfterMs ?? backoff) + Math.random() * HOLD_JITTER_MS,
    );
    this.#host.onChange();
  }

  #resume() {
    clearTimeout(this.#holdTimer);
    this.#heldFor = null;
  }

  /**
   * @param {OutboxEntry} entry
   * @param {Failure} failure
   */
  #fail(entry, {code, message}) {
    Object.assign(entry, {state: "failed", code, message});
    this.#save();
  }

  /** @param {OutboxEntry} entry */
  #drop(entry) {
    this.entries = this.entries.filter((other) => other !== entry);
    this.#save();
  }

  /** @param {string} clientId */
  #find(clientId) {
    return this.entries.find(({client_id: id}) => id === clientId);
  }

  /** @param {Omit<SendFrame, "id">} frame */
  #isTooLarge(frame) {
    const max = this.#host.maxFrameBytes();
    return Boolean(max) && jsonBytes(frame) + ID_BYTES > Number(max);
  }

  #save() {
    const unsent = this.entries.filter(({state}) => state !== "stored");
    const saved = unsent.map(({state, code, message, ...entry}) =>
      state === "failed" ? {...entry, state, code, message} : entry,
    );
    try {
      if (saved.length) this.#storage?.setItem(this.#storageKey, JSON.stringify(saved));
      else this.#storage?.removeItem(this.#storageKey);
    } catch {
      // Full or forbidden: the messages are kept as long as the page is open.
    }
    this.#host.onChange();
  }

  #restore() {
    try {
      const saved = JSON.parse(this.#storage?.getItem(this.#storageKey) ?? "[]");
      this.entries = saved.map((/** @type {object} */ entry) => ({state: "new", ...entry}));
    } catch {
      this.entries = [];
    }
  }
}

/**
 * @param {OutboxEntry} entry
 * @returns {Omit<SendFrame, "id">}
 */
function frameOf({state, code, message, text, ...fields}) {
  return {type: "send", ...fields, ...(!fields.content && {text})};
}

/** @returns {Failure} */
function tooLarge() {
  return {code: "too_large", message: "The message is too large."};
}

/** @param {unknown} value */
function jsonBytes(value) {
  return new TextEncoder().encode(JSON.stringify(value)).length;
}
