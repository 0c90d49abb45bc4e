// Who chats in a widget, and in which session. What the page leaves open is decided here and kept in
// the browser: the visitor, and the key of a session. Nothing is stored before the first message.

import {words} from "../chat-words.js";
import {ApiError, RestClient} from "../chatmemory-rest.js";
import {randomKey} from "../client/keys.js";
import {CLOSE_NOT_FOUND, CLOSE_UNAUTHENTICATED} from "../constants.js";
import {widgetWords} from "../widget-words.js";

/** @import {Banner} from "./banner.js" */
/** @import {ChatMemoryClient} from "../chatmemory-client.js" */
/** @import {ClientOptions} from "../types.d.ts" */
/** @typedef {Banner & {act: () => void}} Problem */
/** @typedef {{key?: string, token?: string}} Kept the token is the secret of a visitor on another site */

export class Access {
  url;
  /** @type {ClientOptions} */
  options;
  /** @type {Problem | null} why there is no connection */
  problem = null;

  #key;
  #embed;
  #person;
  #place;
  #isVisitor;
  #isBeginning = false;
  #login;
  #isNewVisitor = false;
  #hasShown = false; // messages of this session
  #onRestart;
  /** @type {AbortController | undefined} */
  #listening;
  /** @type {Kept} */
  #kept;
  /** @type {RestClient | null} */
  #rest;

  /**
   * @param {HTMLElement} element
   * @param {() => void} onRestart replaces the view by one of a new session
   */
  constructor(element, onRestart) {
    this.#onRestart = onRestart;
    const get = (/** @type {string} */ name) => element.getAttribute(name) ?? "";
    this.#embed = get("embed");
    this.#person = get("person");
    this.#place = get("url") || get("sockets");
    this.#kept = read(this.#nameOf(this.#person));
    const headers = () => this.#headers();
    const api = get("api");
    this.#rest = api ? new RestClient(api, {headers, csrfToken: get("csrf") || undefined}) : null;
    this.#isVisitor = Boolean(api) && !this.#person;
    const [, given] = /([^/]+)\/?$/.exec(get("url")) ?? [];
    this.#key = given ?? this.#kept.key ?? randomKey();
    this.url = get("url") || `${this.#place}${this.#key}/`;
    this.isOpen = Boolean(given) && !this.#isVisitor; // the page knows person and session
    this.#login = get("login");
    this.loadHtml = api ? this.#loadHtml.bind(this) : null;
    this.options = {
      storageKey: `chatmemory:${this.#person}:${this.#place}`,
      // Another site gets no cookie.
      ticket: this.#embed ? () => this.#issueTicket() : null,
      ...(!this.isOpen && {create: !this.isStarted}),
    };
  }

  /** Whether there is something to connect to: the first message was written. */
  get isStarted() {
    return this.isOpen || this.#kept.key === this.#key;
  }

  /**
   * Connect now, or with the first message.
   *
   * @param {ChatMemoryClient} client
   */
  start(client) {
    this.#listening = new AbortController();
    const {signal} = this.#listening;
    client.addEventListener("change", () => this.#begin(client), {signal});
    client.addEventListener("state", () => this.#onState(client), {signal});
    if (this.isStarted) client.connect();
    else this.#begin(client);
  }

  stop() {
    this.#listening?.abort();
  }

  /** @param {ChatMemoryClient} client */
  async #begin(client) {
    if (this.isStarted || this.#isBeginning || this.problem || !client.outbox.length) return;
    this.#isBeginning = true;
    try {
      if (this.#isVisitor && !this.#kept.token) await this.#createVisitor();
      this.#kept.key = this.#key;
      write(this.#nameOf(this.#person), this.#kept);
      if (!this.#listening?.signal.aborted) client.connect();
    } catch (error) {
      console.error(`chatmemory: the chat can't be started.${this.#hint}`, error);
      this.#report(client, this.#problemOf(client, error));
    }
    this.#isBeginning = false;
  }

  // A browser hides from a page why another site refuses it.
  get #hint() {
    if (!this.#embed) return "";
    return ` CHATMEMORY["EMBEDS"] must list ${location.origin} for "${this.#embed}".`;
  }

  async #createVisitor() {
    const {token} = await rest(this.#rest).createVisitor(this.#embed ? {embed: this.#embed} : {});
    if (token) this.#kept.token = token;
    this.#isNewVisitor = true;
  }

  /**
   * @param {ChatMemoryClient} client
   * @param {unknown} error
   */
  #problemOf(client, error) {
    const {status = 0} = /** @type {{status?: number}} */ (error);
    if (status === 401) return {text: words.ended.refused, act: () => {}};
    if (status === 403 || status === 409) {
      return {text: words.ended[4426], action: words.reload, act: () => location.reload()};
    }
    const act = () => {
      this.problem = null;
      this.#begin(client);
    };
    return {text: widgetWords.notStarted, action: widgetWords.tryAgain, act};
  }

  // If the session was removed or the visitor has ended, another one can follow.
  /** @param {ChatMemoryClient} client */
  #onState(client) {
    if (client.state === "live") this.#hasShown = true;
    if (client.state !== "ended") return;
    const code = client.ending?.code;
    const isVisitor = this.#isVisitor && code === CLOSE_UNAUTHENTICATED;
    if (isVisitor && this.#isNewVisitor) {
      console.error("chatmemory: the new visitor is refused. The browser may block its cookie.");
      this.#report(client, {text: words.ended.refused, act: () => {}});
    } else if (this.#login && !isVisitor && code === CLOSE_UNAUTHENTICATED) {
      const act = () => location.assign(this.#login);
      this.#report(client, {text: words.ended[code], action: words.signIn, act});
    } else if (isVisitor || (code === CLOSE_NOT_FOUND && !this.isOpen)) {
      write(this.#nameOf(this.#person), isVisitor ? {} : {token: this.#kept.token});
      const text = isVisitor ? widgetWords.visitorEnded : words.ended[CLOSE_NOT_FOUND];
      this.#report(client, {text, action: widgetWords.newChat, act: this.#onRestart});
      if (!this.#hasShown) queueMicrotask(this.#onRestart); // the client is still in its event
    }
  }

  /**
   * @param {ChatMemoryClient} client
   * @param {Problem} problem
   */
  #report(client, problem) {
    this.problem = problem;
    client.dispatchEvent(new Event("change")); // the view draws it
  }

  /**
   * Load replies as HTML, between two message numbers.
   *
   * @param {number} after
   * @param {number} before
   */
  async #loadHtml(after, before) {
    const limit = before - after - 1;
    const page = await rest(this.#rest).listMessages(this.#key, {after, limit, html: true});
    const end = page.messages.findIndex(({html}) => html === null); // too much for one answer
    const found = end < 0 ? page.messages : page.messages.slice(0, end);
    if (end === 0) {
      const {seq} = page.messages[0];
      found.push(await rest(this.#rest).getMessage(this.#key, seq, {html: true}));
    }
    const messages = found.flatMap(({seq, revision, role, html}) =>
      role === "assistant" && html ? [{seq, revision, html}] : [],
    );
    return {messages, upto: found.at(-1)?.seq ?? before - 1};
  }

  /** The visitor of this browser and the chats which could move to the account. */
  listAdoptable() {
    return rest(this.#rest).listAdoptable();
  }

  /**
   * Move the chats of the visitor to the account, and continue the last one.
   *
   * @param {string} visitor
   */
  async adopt(visitor) {
    const {keys} = await rest(this.#rest).adoptVisitor({visitor});
    const {key} = read(this.#nameOf(""));
    write(this.#nameOf(""), {});
    if (key && keys[key]) write(this.#nameOf(this.#person), {key: keys[key]});
  }

  /** @param {string} person */
  #nameOf(person) {
    return `chatmemory:own:${person}:${this.#embed}:${this.#place}`;
  }

  /** @returns {HeadersInit} */
  #headers() {
    const {token} = this.#kept;
    return token ? {Authorization: `Visitor ${token}`} : {};
  }

  async #issueTicket() {
    try {
      return (await rest(this.#rest).issueTicket()).ticket;
    } catch (error) {
      const isRefused = error instanceof ApiError && error.status === 401;
      throw isRefused ? {code: CLOSE_UNAUTHENTICATED} : {};
    }
  }
}

/** @param {RestClient | null} client */
function rest(client) {
  if (client) return client;
  throw new TypeError('<chat-memory> needs the attribute "api".');
}

/**
 * @param {string} name
 * @returns {Kept}
 */
function read(name) {
  try {
    return JSON.parse(localStorage.getItem(name) ?? "{}");
  } catch {
    return {};
  }
}

/**
 * @param {string} name
 * @param {Kept} kept
 */
function write(name, kept) {
  try {
    if (kept.key || kept.token) localStorage.setItem(name, JSON.stringify(kept));
    else localStorage.removeItem(name);
  } catch {
    // Full or forbidden: the chat ends with the page.
  }
}
