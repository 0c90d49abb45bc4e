// The client of the REST API for browsers and Node.js. Its methods have the names of the operations.
//
//   const rest = new RestClient("/chat/api/");
//   const {key} = await rest.openSession({title: "My order"});
//   const {messages} = await rest.sendMessage(key, {text: "Where is it?", wait: 60});
//
// Queries, bodies and answers have the fields of docs/reference/api.md. Each method resolves to the answer or
// rejects with ApiError; its last parameter, `{signal}`, aborts it. After a lost connection, calls
// that can be repeated are repeated a few times.

import {randomId, randomKey} from "./ids.js";
import {ApiError, Http, pathOf} from "./rest.js";

export {ApiError};

/** @import {Adopt, Adoptable, Adopted, CallOptions, EraseOwnData, ExportQuery, Feedback, FoundPage, HealthState, MessageForm, MessagePage, MessageQuery, NewFeedback, NewVisitor, OpenSession, OwnErasure, Purged, RemovedPage, RemovedQuery, RemovedSession, RestMessage, RestOptions, SearchBody, SendMessage, Sent, Session, SessionPage, SessionQuery, StopTurn, Stopped, Ticket, Turn, TurnPage, UpdateSession, VersionPage, Visitor} from "./rest-types.d.ts" */

const PAGE_SIZE = 100; // the most entries that the server returns in a page

export class RestClient {
  #http;
  #pageSize;

  /**
   * @param {string} url the address of `chatmemory.api.urls`
   * @param {RestOptions} options
   */
  constructor(url, options = {}) {
    this.#http = new Http(url, options);
    this.#pageSize = options.pageSize ?? PAGE_SIZE;
  }

  // Sessions

  /**
   * The sessions, the last active first; `next` is the next cursor.
   *
   * @param {SessionQuery} query
   * @param {CallOptions} options
   * @returns {Promise<SessionPage>}
   */
  listSessions(query = {}, options = {}) {
    return this.#get("sessions/", query, options);
  }

  /**
   * All sessions, the last active first. One that becomes active meanwhile may be missing.
   *
   * @param {Omit<SessionQuery, "limit" | "cursor">} filters
   * @param {CallOptions} options
   * @returns {AsyncGenerator<Session, void>}
   */
  async *sessions(filters = {}, options = {}) {
    /** @type {string | null} */
    let cursor = null;
    do {
      const query = {...filters, limit: this.#pageSize, cursor};
      const page = await this.listSessions(query, options);
      yield* page.sessions;
      cursor = page.next;
    } while (cursor !== null);
  }

  /**
   * The session with a key, by default a new one.
   *
   * @param {OpenSession} session
   * @param {CallOptions} options
   * @returns {Promise<Session>}
   */
  async openSession(session = {}, options = {}) {
    // The key is chosen here, so that a repeat opens no second session.
    return this.#write("POST", "sessions/", {key: randomKey(), ...session}, options);
  }

  /**
   * @param {string} key
   * @param {CallOptions} options
   * @returns {Promise<Session>}
   */
  async getSession(key, options = {}) {
    return this.#get(pathOf("sessions", key), {}, options);
  }

  /**
   * Rename a session, pin or unpin it.
   *
   * @param {string} key
   * @param {UpdateSession} changes
   * @param {CallOptions} options
   * @returns {Promise<Session>}
   */
  async updateSession(key, changes, options = {}) {
    return this.#write("PATCH", pathOf("sessions", key), changes, options);
  }

  /**
   * Close a session for new messages.
   *
   * @param {string} key
   * @param {CallOptions} options
   * @returns {Promise<Session>}
   */
  async archiveSession(key, options = {}) {
    return this.#write("POST", pathOf("sessions", key, "archive"), {}, options);
  }

  /**
   * @param {string} key
   * @param {CallOptions} options
   * @returns {Promise<Session>}
   */
  async unarchiveSession(key, options = {}) {
    return this.#write("POST", pathOf("sessions", key, "unarchive"), {}, options);
  }

  /**
   * Purge a session; `undo` restores it until `until`.
   *
   * @param {string} key
   * @param {CallOptions} options
   * @returns {Promise<Purged>}
   */
  async purgeSession(key, options = {}) {
    try {
      return await this.#write("DELETE", pathOf("sessions", key), undefined, options);
    } catch (error) {
      if (!(error instanceof ApiError) || error.code !== "not_found" || error.attempts === 1) {
        throw error;
      }
      // An earlier attempt purged it, and its answer was lost.
      for await (const removed of this.removed(options)) {
        if (removed.key === key) return {undo: removed.undo, until: removed.until};
      }
      throw error;
    }
  }

  /**
   * Purged sessions that can be restored, the last one first.
   *
   * @param {RemovedQuery} query
   * @param {CallOptions} options
   * @returns {Promise<RemovedPage>}
   */
  listRemoved(query = {}, options = {}) {
    return this.#get("removed/", query, options);
  }

  /**
   * @param {CallOptions} options
   * @returns {AsyncGenerator<RemovedSession, void>}
   */
  async *removed(options = {}) {
    /** @type {string | null} */
    let cursor = null;
    do {
      const page = await this.listRemoved({limit: this.#pageSize, cursor}, options);
      yield* page.removed;
      cursor = page.next;
    } while (cursor !== null);
  }

  /**
   * Restore a purged session. After `disconnected`, see `listRemoved`.
   *
   * @param {number} undo
   * @param {CallOptions} options
   * @returns {Promise<Session>}
   */
  async restoreSession(undo, options = {}) {
    // Not repeated: the second answer would be `conflict`.
    return this.#write("POST", pathOf("removed", undo, "restore"), {}, options, false);
  }

  // Messages

  /**
   * Messages in order of seq: after a seq, before one, missed since a cursor, or the newest.
   *
   * @param {string} key
   * @param {MessageQuery} query
   * @param {CallOptions} options
   * @returns {Promise<MessagePage>}
   */
  async listMessages(key, query = {}, options = {}) {
    return this.#get(pathOf("sessions", key, "messages"), query, options);
  }

  /**
   * Messages after a seq, by default all, the oldest first.
   *
   * @param {string} key
   * @param {{after?: number}} start
   * @param {CallOptions} options
   * @returns {AsyncGenerator<RestMessage, void>}
   */
  async *messages(key, {after = 0} = {}, options = {}) {
    for (let last = after; ; ) {
      const page = await this.listMessages(key, {after: last, limit: this.#pageSize}, options);
      yield* page.messages;
      last = page.messages.at(-1)?.seq ?? page.last_seq;
      if (last >= page.last_seq) return;
    }
  }

  /**
   * Messages before a seq, by default all, the newest first.
   *
   * @param {string} key
   * @param {{before?: number}} start
   * @param {CallOptions} options
   * @returns {AsyncGenerator<RestMessage, void>}
   */
  async *olderMessages(key, {before} = {}, options = {}) {
    for (let first = before; ; ) {
      const page = await this.listMessages(key, {before: first, limit: this.#pageSize}, options);
      yield* page.messages.toReversed();
      first = page.messages[0]?.seq ?? page.first_seq;
      if (first <= page.first_seq) return;
    }
  }

  /**
   * Send a message; resolves to the state of its turn after the commit, or after `wait` seconds or
   * its reply.
   *
   * @param {string} key
   * @param {SendMessage} message
   * @param {CallOptions} options
   * @returns {Promise<Sent>}
   */
  async sendMessage(key, message, options = {}) {
    const {client_id = randomId(), wait = 0} = message;
    const timeoutMs = wait === true ? Number.POSITIVE_INFINITY : Number(wait) * 1000;
    const body = {...message, client_id};
    const path = pathOf("sessions", key, "messages");
    try {
      return await this.#http.request({method: "POST", path, body, timeoutMs, ...options});
    } catch (error) {
      if (error instanceof ApiError) error.client_id = client_id;
      throw error;
    }
  }

  /**
   * A message without truncation.
   *
   * @param {string} key
   * @param {number} seq
   * @param {MessageForm} form
   * @param {CallOptions} options
   * @returns {Promise<RestMessage>}
   */
  async getMessage(key, seq, form = {}, options = {}) {
    return this.#get(pathOf("sessions", key, "messages", seq), form, options);
  }

  /**
   * The versions of a user's message, the oldest first.
   *
   * @param {string} key
   * @param {number} seq
   * @param {CallOptions} options
   * @returns {Promise<VersionPage>}
   */
  async listVersions(key, seq, options = {}) {
    return this.#get(pathOf("sessions", key, "messages", seq, "versions"), {}, options);
  }

  /**
   * Find messages by their words, with `chatmemory.search.urls`.
   *
   * @param {SearchBody} body
   * @param {CallOptions} options
   * @returns {Promise<FoundPage>}
   */
  searchMessages(body, options = {}) {
    return this.#write("POST", "search/", body, options);
  }

  // Turns

  /**
   * The running turn, then the waiting ones in order.
   *
   * @param {string} key
   * @param {CallOptions} options
   * @returns {Promise<TurnPage>}
   */
  async listTurns(key, options = {}) {
    return this.#get(pathOf("sessions", key, "turns"), {}, options);
  }

  /**
   * A turn, also one that has ended.
   *
   * @param {string} key
   * @param {string} turn
   * @param {CallOptions} options
   * @returns {Promise<Turn>}
   */
  async getTurn(key, turn, options = {}) {
    return this.#get(pathOf("sessions", key, "turns", turn), {}, options);
  }

  /**
   * Stop the running turn, or cancel a waiting one.
   *
   * @param {string} key
   * @param {StopTurn} which
   * @param {CallOptions} options
   * @returns {Promise<Stopped>}
   */
  async stopTurn(key, which = {}, options = {}) {
    // A repeat without a name would stop the next turn.
    const canRepeat = which.turn != null;
    return this.#write("POST", pathOf("sessions", key, "stop"), which, options, canRepeat);
  }

  /**
   * Rate the reply of an ended turn: 1 (good) or -1 (bad); null withdraws it.
   *
   * @param {string} key
   * @param {string} turn
   * @param {NewFeedback} feedback
   * @param {CallOptions} options
   * @returns {Promise<Feedback>}
   */
  async setFeedback(key, turn, feedback, options = {}) {
    return this.#write(
      "PUT",
      pathOf("sessions", key, "turns", turn, "feedback"),
      feedback,
      options,
    );
  }

  /**
   * @param {string} key
   * @param {string} turn
   * @param {CallOptions} options
   * @returns {Promise<Feedback>}
   */
  async withdrawFeedback(key, turn, options = {}) {
    const path = pathOf("sessions", key, "turns", turn, "feedback");
    return this.#write("DELETE", path, undefined, options);
  }

  // The user's data, tickets, health

  /**
   * A file with all sessions of the user: the response, whose body is a stream.
   *
   * @param {ExportQuery} query
   * @param {CallOptions} options
   * @returns {Promise<Response>}
   */
  exportOwnData(query = {}, options = {}) {
    const timeoutMs = Number.POSITIVE_INFINITY; // the body may take long
    return this.#http.stream({
      method: "GET",
      path: "own-data/export/",
      query: {...query},
      timeoutMs,
      ...options,
    });
  }

  /**
   * Delete all sessions permanently; `confirm` is the username. Resolves to the receipt.
   *
   * @param {EraseOwnData} body
   * @param {CallOptions} options
   * @returns {Promise<OwnErasure>}
   */
  eraseOwnData(body, options = {}) {
    // Not repeated: the second receipt would not contain what the first call deleted.
    return this.#write("POST", "own-data/erase/", body, options, false);
  }

  /**
   * The visitor of this browser, who has no account; by default a new one, with a cookie. With an
   * `embed`, always a new one, with the `token` for `Authorization: Visitor …`.
   *
   * @param {NewVisitor} body
   * @param {CallOptions} options
   * @returns {Promise<Visitor>}
   */
  createVisitor(body = {}, options = {}) {
    return this.#write("POST", "visitors/", body, options);
  }

  /**
   * The sessions of this browser's visitor.
   *
   * @param {CallOptions} options
   * @returns {Promise<Adoptable>}
   */
  listAdoptable(options = {}) {
    return this.#get("visitors/adoption/", {}, options);
  }

  /**
   * Move the visitor's sessions to the user; resolves to their keys.
   *
   * @param {Adopt} body
   * @param {CallOptions} options
   * @returns {Promise<Adopted>}
   */
  adoptVisitor(body, options = {}) {
    return this.#write("POST", "visitors/adoption/", body, options);
  }

  /**
   * Delete all data of the visitor, and end the visitor. Resolves to the receipt.
   *
   * @param {CallOptions} options
   * @returns {Promise<OwnErasure>}
   */
  eraseVisitor(options = {}) {
    return this.#write("DELETE", "visitors/me/", undefined, options, false);
  }

  /**
   * A ticket, with which a client without cookies opens one websocket.
   *
   * @param {CallOptions} options
   * @returns {Promise<Ticket>}
   */
  issueTicket(options = {}) {
    return this.#write("POST", "tickets/", {}, options);
  }

  /**
   * Whether the app works; with the secret `HEALTH_TOKEN` also the details.
   *
   * @param {{token?: string}} secret
   * @param {CallOptions} options
   * @returns {Promise<HealthState>}
   */
  getHealth({token} = {}, options = {}) {
    /** @type {Record<string, string>} */
    const headers = token ? {Authorization: `Bearer ${token}`} : {};
    const call = {method: "GET", path: "health/", headers, isPublic: true, accepts: [503]};
    return this.#http.request({...call, canRepeat: false, ...options});
  }

  /**
   * @param {string} path
   * @param {object} query
   * @param {CallOptions} options
   */
  #get(path, query, options) {
    return this.#http.request({method: "GET", path, query: {...query}, ...options});
  }

  /**
   * @param {string} method
   * @param {string} path
   * @param {object | undefined} body
   * @param {CallOptions} options
   * @param {boolean} canRepeat
   */
  #write(method, path, body, options, canRepeat = true) {
    return this.#http.request({method, path, body, canRepeat, ...options});
  }
}
