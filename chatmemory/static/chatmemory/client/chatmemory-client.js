// The client of the protocol `chatmemory.v1` for browsers: a session as data, without a user
// interface. It reconnects, and keeps unacknowledged messages in the tab's storage.
//
//   const client = new ChatMemoryClient(`/ws/chat/${crypto.randomUUID()}/`, {create: true});
//   const show = () => draw(client.rows, client.streams, client.outbox);
//   for (const name of ["change", "text"]) client.addEventListener(name, show);
//   client.connect();
//   client.send("Hello");
//
// Events: `state` (the connection), `change` (rows, session, outbox, activity, a new streamed
// text), `text` (a streamed text; detail: {key, piece}, piece null if all is new), `block` (its HTML
// has grown; detail: {key}), `reset`, `synced`.

import {CLOSE_NOT_FOUND, MAX_FETCH, PROTOCOL_VERSION} from "../shared/constants.js";
import {Connection} from "./connection.js";
import {Outbox} from "./outbox.js";
import {disconnected, Requests} from "./requests.js";
import {streamKey, Transcript} from "./transcript.js";
import {
  beginsTurn,
  newestUserSeq,
  pathOf,
  replacedRanges,
  turnStart,
  versionsOf,
} from "./versions.js";

export {beginsTurn, streamKey, turnStart};

/** @import {ClientOptions, ErrorFrame, Failure, IfBusy, Limits, OkFrame, RequestFrame, ServerFrame, SyncedFrame} from "./types.d.ts" */

export class ChatMemoryClient extends EventTarget {
  title = "";
  /** @type {Limits} */
  limits = {};
  /** @type {number | null} messages that the server lost, null if their number is unknown */
  lost = 0; // a page may set it to 0
  /** @type {string | null} the turn that was requested to stop */
  stopping = null;

  #connection;
  #requests;
  #outbox;
  #transcript = new Transcript();
  /** @type {string | null} of the last `synced` frame */
  #cursor = null;
  #isSynced = false;
  #isWanted = false; // `connect` was called, and `close` not since
  /** @type {Promise<void> | null} */
  #fetching = null;

  /**
   * @param {string} url of the websocket; a path belongs to the host of the page
   * @param {ClientOptions} options
   */
  constructor(
    url,
    {
      create = false,
      html = null,
      person = null,
      ticket = null,
      storage = defaultStorage(),
      storageKey = `chatmemory:${url}`,
    } = {},
  ) {
    super();
    const address = new URL(url, globalThis.location?.href);
    address.protocol = address.protocol.replace(/^http/, "ws");
    this.url = address.href;
    this.create = create;
    this.html = html;
    this.person = person;
    this.#connection = new Connection(this.url, ticket, {
      onOpen: () => this.#sendHello(),
      onFrame: (frame) => this.#onFrame(frame),
      onDisconnect: (code) => this.#onDisconnect(code),
      onState: () => this.#onState(),
    });
    this.#requests = new Requests((frame) => this.#connection.put(frame));
    this.#outbox = new Outbox(
      {
        isReady: () => this.#isSynced,
        epoch: () => this.session?.epoch,
        newestUserSeq: () => newestUserSeq(this.rows),
        turnCount: () => this.#transcript.turnCount,
        maxFrameBytes: () => this.limits.max_frame_bytes,
        request: (frame) => this.#request(frame),
        onChange: () => this.#onOutbox(),
      },
      storage,
      storageKey,
    );
  }

  /** `idle`, `connecting`, `live`, `waiting` (for the next attempt) or `ended`. */
  get state() {
    return this.#connection.state;
  }

  /** Why the last connection ended, while the state is waiting or ended. */
  get ending() {
    return this.#connection.ending;
  }

  /** The newest `session` frame. */
  get session() {
    return this.#transcript.session;
  }

  /** `message` frames by number. */
  get rows() {
    return this.#transcript.rows;
  }

  /** Texts that are streamed and not stored yet, by `turn:step`. */
  get streams() {
    return this.#transcript.streams;
  }

  /** What the run does besides writing text. */
  get activity() {
    return this.#transcript.activity;
  }

  /** Messages that have no row and no waiting turn yet. */
  get outbox() {
    return this.#outbox.entries;
  }

  get oldest() {
    return this.#transcript.oldest;
  }

  get hasOlder() {
    return this.#transcript.hasOlder;
  }

  /** Connect, and again after each loss; with `create`, when there is a first message. */
  connect() {
    this.#isWanted = true;
    if (!this.create || this.outbox.some(({state}) => state !== "failed")) {
      this.#connection.connect();
    }
  }

  /** Close the socket until the next `connect()`. The running turn continues on the server. */
  close() {
    this.#isWanted = false;
    this.#connection.close();
  }

  /**
   * Keep a message and send it as soon as possible; returns its entry in the outbox. `ifBusy` decides
   * what happens to it while a turn runs; the default is a setting of the server.
   *
   * @param {string} text
   * @param {{ifBusy?: IfBusy}} options
   */
  send(text, {ifBusy} = {}) {
    return this.#outbox.add({text, ...(ifBusy && {if_busy: ifBusy})});
  }

  /**
   * Replace a user's message and all that follows it, which stays as an older version. Fails as
   * `conflict` if there is a newer message than this client knows, as `busy` during a turn.
   *
   * @param {number} seq
   * @param {string} text
   */
  edit(seq, text) {
    return this.#outbox.add({text, ...this.#replacing(seq)});
  }

  /**
   * Request another answer to a message; `seq` is that of the message or of an answer to it.
   *
   * @param {number} seq
   */
  regenerate(seq) {
    const start = turnStart(this.rows, seq);
    const {text = "", content} = this.rows.get(start) ?? {};
    return this.#outbox.add({text, ...(content && {content}), ...this.#replacing(start)});
  }

  /**
   * Send a failed message again.
   *
   * @param {string} clientId
   */
  retry(clientId) {
    this.#outbox.retry(clientId);
  }

  /**
   * Drop a message from the outbox; false if it may be in flight.
   *
   * @param {string} clientId
   */
  discard(clientId) {
    return this.#outbox.discard(clientId);
  }

  /**
   * Change the title of the session. Rejects with the server's error, or `disconnected`.
   *
   * @param {string} title of up to 200 characters
   */
  async rename(title) {
    await this.#request({type: "rename", title});
  }

  /**
   * Rate the reply of an ended turn; the message gets the value as its `feedback`. Rejects with the
   * server's error, or `disconnected`.
   *
   * @param {string} turn
   * @param {1 | -1 | null} value null withdraws the feedback
   * @param {string} reason of up to 1,000 characters
   */
  async feedback(turn, value, reason = "") {
    await this.#request({type: "feedback", turn, value, reason});
  }

  /**
   * Stop a turn, by default the running one; the server keeps the partial text. The request is
   * repeated after a lost connection as long as the turn runs.
   *
   * @param {string | undefined} turn
   */
  async stop(turn = this.session?.running?.turn) {
    if (!turn) return;
    this.stopping = turn;
    this.#onChange();
    try {
      await this.#request({type: "stop", turn});
    } catch (error) {
      if (/** @type {Failure} */ (error).code === "disconnected") return;
      this.stopping = null;
      this.#onChange();
    }
  }

  /**
   * Cancel a waiting turn; resolves to its status, which is not `cancelled` if the turn already
   * started. Rejects with the `error` frame, or with {code: "disconnected"}.
   *
   * @param {string} turn
   */
  async cancel(turn) {
    return (await this.#request({type: "stop", turn})).status;
  }

  /** Load the messages before the oldest one; resolves when they are in `rows`. */
  fetchOlder(limit = 50) {
    if (!this.hasOlder) return Promise.resolve();
    this.#fetching ??= this.#fetchBefore(this.oldest, limit).finally(() => {
      this.#fetching = null;
    });
    return this.#fetching;
  }

  /**
   * @param {number} seq
   * @param {number} limit
   */
  async #fetchBefore(seq, limit) {
    const {generation} = this.#transcript;
    const {messages} = await this.#request({type: "fetch", before_seq: seq, limit});
    // After a reset they would leave a gap.
    if (!messages?.length || generation !== this.#transcript.generation) return;
    for (const message of messages) this.#transcript.putRow(message);
    this.#onChange();
  }

  /**
   * Load all messages from this seq on.
   *
   * @param {number} seq
   */
  async fetchFrom(seq) {
    while (this.hasOlder && this.oldest > seq) await this.fetchOlder(MAX_FETCH);
  }

  /**
   * The versions of the turn that starts with a user's message, the oldest first and this one last:
   * [{from, to}]. Their rows may have to be loaded, with `fetchFrom(from)`.
   *
   * @param {number} seq
   */
  versions(seq) {
    return versionsOf(seq, this.#replacedRanges(), this.session?.first_seq ?? 0);
  }

  /**
   * The rows to show, in ascending order: [{row, version, isOld}], where `version` is null or {of,
   * number, count}.
   *
   * @param {Map<number, number>} chosen user's message → the first row of the version to show instead
   */
  path(chosen = new Map()) {
    const firstSeq = this.session?.first_seq ?? 0;
    return pathOf({rows: this.rows, replaced: this.#replacedRanges(), firstSeq}, chosen);
  }

  #replacedRanges() {
    return replacedRanges(this.session, this.rows, this.outbox);
  }

  /** @param {number} seq */
  #replacing(seq) {
    if (!beginsTurn(this.rows.get(seq))) {
      throw new RangeError(`Message ${seq} is not the start of a turn.`);
    }
    return {replaces: seq, expect_seq: newestUserSeq(this.rows)};
  }

  /**
   * @param {RequestFrame} frame
   * @returns {Promise<OkFrame>}
   */
  #request(frame) {
    return this.#isSynced ? this.#requests.send(frame) : Promise.reject(disconnected());
  }

  #sendHello() {
    // Without a cursor the newest rows follow, maybe after a gap.
    if (this.#cursor === null) this.#transcript.clear();
    this.#connection.put({
      type: "hello",
      v: PROTOCOL_VERSION,
      cursor: this.#cursor,
      create: this.create,
      html: this.html,
      person: this.person,
    });
  }

  /** @param {ServerFrame} frame */
  #onFrame(frame) {
    switch (frame.type) {
      case "welcome":
        this.create = false; // a session that is purged later must not be created again
        this.title = frame.session?.title ?? "";
        this.limits = frame.limits ?? {};
        break;
      case "session":
        if (this.#transcript.putSession(frame)) this.#onSession();
        break;
      case "message":
        // A row that is not loaded would leave a gap; `fetchOlder` loads it later.
        if (this.rows.size && frame.seq < this.oldest) return;
        this.#transcript.putRow(frame);
        break;
      case "reset": {
        const {reason, lost = 0} = frame;
        this.#transcript.clear();
        this.#transcript.session = null;
        this.#cursor = null;
        if (lost !== 0) this.lost = lost;
        this.dispatchEvent(new CustomEvent("reset", {detail: {reason, lost}}));
        break;
      }
      case "synced":
        this.#onSynced(frame);
        return;
      case "snapshot":
      case "delta": {
        const {isChanged, textChange} = this.#transcript.putText(frame);
        if (isChanged) this.#onChange();
        if (textChange) this.dispatchEvent(new CustomEvent("text", {detail: textChange}));
        return;
      }
      case "block":
        if (this.#transcript.putBlock(frame)) {
          this.dispatchEvent(new CustomEvent("block", {detail: {key: streamKey(frame)}}));
        }
        return;
      case "ok":
      case "error":
        this.#requests.settle(frame);
        if (this.create && frame.type === "error") this.#onRefusal(frame);
        return;
      default:
        return; // a newer server may send other types
    }
    this.#onChange();
  }

  // The server did not create the session.
  /** @param {ErrorFrame} frame */
  #onRefusal(frame) {
    this.#outbox.refuseAll(frame); // first: others would connect again
    this.#connection.close();
  }

  #onSession() {
    this.title = this.session?.title ?? "";
    if (this.stopping !== this.session?.running?.turn) this.stopping = null;
    this.#outbox.onTurnCount();
  }

  /** @param {SyncedFrame} frame */
  #onSynced({cursor}) {
    this.#cursor = cursor;
    const isDropped = this.#outbox.dropStored();
    if (this.#isSynced) {
      this.#connection.confirm();
      if (isDropped) this.#onChange();
      return;
    }
    this.#isSynced = true;
    this.#connection.confirm();
    this.dispatchEvent(new Event("synced"));
    if (this.stopping) this.stop(this.stopping);
    this.#outbox.dispatch();
  }

  /** @param {number | "refused" | null} code */
  #onDisconnect(code) {
    this.#isSynced = false;
    this.#requests.rejectAll();
    this.#transcript.activity = [];
    if (code === CLOSE_NOT_FOUND) this.#transcript.clear(); // removed meanwhile
    this.#outbox.onDisconnect(code);
  }

  #onOutbox() {
    if (this.#isWanted && this.state === "idle") this.connect();
    this.#onChange();
  }

  #onState() {
    this.dispatchEvent(new Event("state"));
    this.#onChange();
  }

  #onChange() {
    this.dispatchEvent(new Event("change"));
  }
}

function defaultStorage() {
  try {
    return globalThis.sessionStorage ?? null;
  } catch {
    return null; // forbidden by the browser's settings
  }
}
