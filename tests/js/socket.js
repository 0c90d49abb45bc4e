// A fake WebSocket; the test plays the server.

import {ChatMemoryClient} from "../../chatmemory/static/chatmemory/client/chatmemory-client.js";

/** @import {ClientOptions, MessageFrame, SessionFrame} from "../../chatmemory/static/chatmemory/client/types.d.ts" */

/** Opened by the client, in order. */
/** @type {TestSocket[]} */
export const sockets = [];

export class TestSocket {
  static OPEN = 1;

  readyState = 0;
  /** @type {any[]} frames that the client sent */
  sent = [];
  /** @type {(() => void) | null} */
  onopen = null;
  /** @type {((event: {data: string}) => void) | null} */
  onmessage = null;
  /** @type {((event: {code: number, reason: string}) => void) | null} */
  onclose = null;

  /**
   * @param {string} url
   * @param {string[]} protocols
   */
  constructor(url, protocols) {
    if (protocols.some((name) => /\s/.test(name))) throw new SyntaxError("not a token");
    this.url = url;
    this.protocols = protocols;
    sockets.push(this);
  }

  /** @param {string} data */
  send(data) {
    this.sent.push(JSON.parse(data));
  }

  close() {
    this.readyState = 3;
  }

  // The server's part

  accept() {
    this.readyState = TestSocket.OPEN;
    this.onopen?.();
  }

  /**
   * @param {string} type
   * @param {object} fields
   */
  emit(type, fields = {}) {
    this.onmessage?.({data: JSON.stringify({type, ...fields})});
  }

  /** @param {number} code */
  drop(code) {
    this.readyState = 3;
    this.onclose?.({code, reason: ""});
  }

  /**
   * Accept the socket and send these rows.
   *
   * @param {{rows?: MessageFrame[], session?: Partial<SessionFrame>, limits?: object}} content
   */
  welcome({rows = [], session = {}, limits = {max_message_chars: 100, max_frame_bytes: 500}} = {}) {
    this.accept();
    this.emit("welcome", {v: 1, session: {key: "k", title: ""}, limits});
    for (const row of rows) this.emit("message", row);
    this.emitSession({last_seq: rows.length, ...session});
    this.emit("synced", {cursor: "c1"});
  }

  /** @param {Partial<SessionFrame>} fields */
  emitSession(fields) {
    const head = {key: "k", title: "", epoch: 7, first_seq: 1, last_seq: 0, revision: 0};
    const rest = {archived: false, superseded: [], running: null, waiting: []};
    this.emit("session", {...head, ...rest, ...fields});
  }

  /** @param {string} type */
  last(type) {
    return this.sent.findLast((frame) => frame.type === type);
  }

  /** @param {string} type */
  count(type) {
    return this.sent.filter((frame) => frame.type === type).length;
  }
}

/**
 * Let promises that are settled already call their handlers.
 */
export async function settle() {
  for (let i = 0; i < 20; i += 1) await null;
}

/**
 * A new client whose sockets are in `sockets`, which is emptied.
 *
 * @param {ClientOptions} options
 */
export function makeClient(options = {}) {
  sockets.length = 0;
  Object.assign(globalThis, {WebSocket: TestSocket});
  return new ChatMemoryClient("https://chat.test/ws/chat/k/", {storage: null, ...options});
}

/** The newest socket. */
export function socket() {
  return sockets[sockets.length - 1];
}

/**
 * @param {ClientOptions} options
 * @param {Parameters<TestSocket["welcome"]>[0]} content
 */
export function liveClient(options = {}, content = {}) {
  const client = makeClient(options);
  client.connect();
  socket().welcome(content);
  return client;
}

/**
 * @param {number} seq
 * @param {string} text
 * @param {Partial<MessageFrame>} fields
 * @returns {MessageFrame}
 */
export function row(seq, text, fields = {}) {
  return {
    type: "message",
    seq,
    revision: 0,
    turn: null,
    step: null,
    client_id: null,
    role: "user",
    status: "complete",
    text,
    content: null,
    cut: false,
    error: "",
    asks: null,
    usage: null,
    model: "",
    redacted: false,
    quarantined: false,
    feedback: null,
    created_at: "2026-01-01T00:00Z",
    ...fields,
  };
}

/** Storage as in a browser's tab. */
export class TestStorage {
  /** @type {Map<string, string>} */
  items = new Map();

  /** @param {string} key */
  getItem(key) {
    return this.items.get(key) ?? null;
  }

  /**
   * @param {string} key
   * @param {string} value
   */
  setItem(key, value) {
    this.items.set(key, value);
  }

  /** @param {string} key */
  removeItem(key) {
    this.items.delete(key);
  }
}
