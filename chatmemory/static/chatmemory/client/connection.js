// A websocket that reconnects after a lost connection.

import {CLOSE_RATE_LIMITED, FATAL_CLOSES, SILENCE_SECONDS} from "../shared/constants.js";

/** @import {ByeFrame, ClientFrame, ConnectionState, Ending, ServerFrame, TicketSource} from "./types.d.ts" */

const FIRST_RETRY_MS = 500;
const MAX_RETRY_MS = 10_000;
const MAX_REFUSALS = 5; // failed handshakes before the server is asked over HTTP
const ABNORMAL_CLOSE = 1006; // RFC 6455, 7.4.1: no close frame was received

/**
 * @typedef {object} Handlers
 * @property {() => void} onOpen
 * @property {(frame: ServerFrame) => void} onFrame
 * @property {(code: number | "refused" | null) => void} onDisconnect null after `close()`
 * @property {() => void} onState
 */

export class Connection {
  /** @type {ConnectionState} */
  state = "idle";
  /** @type {Ending | null} while the state is waiting or ended */
  ending = null;

  #url;
  #ticket;
  #handlers;
  /** @type {object | null} the attempt that waits for its ticket */
  #opening = null;
  /** @type {WebSocket | null} */
  #socket = null;
  /** @type {ByeFrame | null} */
  #bye = null;
  #attempts = 0;
  #hasOpened = false;
  #refusals = 0; // handshakes that failed before the first socket opened
  #notBefore = 0; // when the server permits the next attempt
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #retryTimer;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #silenceTimer;

  /**
   * @param {string} url
   * @param {TicketSource | null} ticket
   * @param {Handlers} handlers
   */
  constructor(url, ticket, handlers) {
    this.#url = url;
    this.#ticket = ticket;
    this.#handlers = handlers;
  }

  /** Open the socket now, but not before the server permits it. */
  connect() {
    if (this.#opening || this.#socket) return;
    if (this.state === "waiting" && Date.now() < this.#notBefore) return;
    clearTimeout(this.#retryTimer);
    this.ending = null;
    this.#bye = null;
    if (this.#ticket) this.#openWithTicket(this.#ticket);
    else this.#open();
    this.#setState("connecting");
  }

  close() {
    clearTimeout(this.#retryTimer);
    this.#abandon(null);
    this.#setState("idle");
  }

  /** The session is in sync: the next pause is the shortest again. */
  confirm() {
    this.#attempts = 0;
    if (this.state === "connecting") this.#setState("live");
  }

  /**
   * Send a frame, or drop it if the socket is not open.
   *
   * @param {ClientFrame} frame
   */
  put(frame) {
    if (this.#socket?.readyState === WebSocket.OPEN) this.#socket.send(JSON.stringify(frame));
  }

  /** @param {string[]} protocols */
  #open(protocols = []) {
    const socket = new WebSocket(this.#url, protocols);
    this.#socket = socket;
    // An abandoned socket can still report events.
    const isCurrent = () => this.#socket === socket;
    socket.onopen = () => {
      if (!isCurrent()) return;
      this.#hasOpened = true;
      this.#handlers.onOpen();
    };
    socket.onmessage = ({data}) => {
      if (isCurrent()) this.#receive(JSON.parse(data));
    };
    socket.onclose = ({code, reason}) => {
      if (!isCurrent()) return;
      this.#lose(code, reason);
      if (!this.#hasOpened && ++this.#refusals >= MAX_REFUSALS) this.#checkServer();
    };
    this.#restartSilenceTimer();
  }

  /** @param {TicketSource} ticket */
  async #openWithTicket(ticket) {
    const opening = {};
    this.#opening = opening;
    this.#restartSilenceTimer();
    try {
      // In a microtask, so that a synchronous error is treated alike.
      const value = await Promise.resolve().then(ticket);
      if (this.#opening !== opening) return; // closed meanwhile, or too late
      this.#open(["chatmemory.v1", `ticket.${value}`]); // throws if no subprotocol can contain it
      this.#opening = null;
    } catch (error) {
      const {code = ABNORMAL_CLOSE} = /** @type {{code?: number}} */ (error ?? {});
      if (this.#opening === opening) this.#lose(code, "no ticket");
    }
  }

  /** @param {ServerFrame} frame */
  #receive(frame) {
    this.#restartSilenceTimer();
    if (frame.type === "ping") {
      this.put({type: "pong", n: frame.n});
    } else if (frame.type === "bye") {
      this.#bye = frame;
      this.#lose(frame.code, frame.reason); // some servers lose the code of their close frame
    } else {
      this.#handlers.onFrame(frame);
    }
  }

  // A browser reports a broken connection after minutes; the server sends frames every few seconds.
  #restartSilenceTimer() {
    clearTimeout(this.#silenceTimer);
    const lose = () => this.#lose(ABNORMAL_CLOSE, "silence");
    this.#silenceTimer = setTimeout(lose, SILENCE_SECONDS * 1000);
  }

  // Not after its close event, which takes a minute if the line is broken.
  /** @param {number | "refused" | null} code */
  #abandon(code) {
    clearTimeout(this.#silenceTimer);
    const socket = this.#socket;
    this.#opening = null;
    this.#socket = null;
    socket?.close();
    this.#handlers.onDisconnect(code);
  }

  /**
   * @param {number} closeCode
   * @param {string} closeReason
   */
  #lose(closeCode, closeReason) {
    const bye = this.#bye;
    const code = bye?.code ?? closeCode;
    this.#abandon(code);
    this.ending = {code, reason: bye?.reason ?? closeReason, message: bye?.message};
    if (bye?.reconnect === false || FATAL_CLOSES.includes(code)) {
      this.#setState("ended");
      return;
    }
    const backoff = Math.min(MAX_RETRY_MS, FIRST_RETRY_MS * 2 ** this.#attempts++);
    const minimum = bye?.after_ms ?? (code === CLOSE_RATE_LIMITED ? MAX_RETRY_MS : 0);
    this.#notBefore = Date.now() + minimum;
    this.#retryTimer = setTimeout(
      () => {
        this.#notBefore = 0; // the timer is monotonic; the clock may have been set back
        this.connect();
      },
      // Random: the clients of a restarted server must not reconnect together.
      minimum + Math.random() * backoff,
    );
    this.#setState("waiting");
  }

  async #checkServer() {
    const refusal = await import("./refusal.js").catch(() => null); // null without a network
    const status = await refusal?.httpStatus(this.#url);
    if (!refusal || !status) return;
    if (this.#hasOpened || this.state === "idle" || this.state === "ended") return;
    clearTimeout(this.#retryTimer);
    this.#abandon("refused");
    this.ending = {code: "refused", ...refusal.reportRefusal(this.#url, this.#refusals, status)};
    this.#setState("ended");
  }

  /** @param {ConnectionState} state */
  #setState(state) {
    this.state = state;
    this.#handlers.onState();
  }
}
