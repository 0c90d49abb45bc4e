// Who chats in a widget, and in which session. What the page leaves open is kept in the browser: the
// visitor, and the key of a session. Nothing is stored before the first message.

import {ApiError, RestClient} from "../client/chatmemory-rest.js";
import {randomKey} from "../client/ids.js";
import {words} from "../element/chat-words.js";
import {CLOSE_NOT_FOUND, CLOSE_UNAUTHENTICATED} from "../shared/constants.js";
import {widgetWords} from "./widget-words.js";

/** @import {Banner} from "../element/banner.js" */
/** @import {ChatMemoryClient} from "../client/chatmemory-client.js" */
/** @import {ClientOptions, OutboxEntry} from "../client/types.d.ts" */
/** @typedef {Banner & {act: () => void}} Problem */
/**
 * What the browser keeps.
 *
 * @typedef {object} Kept
 * @property {string} [key] of the chat that it continues
 * @property {string} [token] the secret of a visitor on another site
 * @property {boolean} [hasOthers] whether the person left other chats here
 * @property {string} [last] key of a visitor's chat that has ended: it may be in an account now
 */

const STORAGE_MS = 500;

export class Access {
  url;
  /** @type {ClientOptions} */
  options;
  /** @type {Problem | null} why there is no connection */
  problem = null;

  #key;
  #isGiven; // the key is in the attribute `url`
  #embed;
  #person;
  #place;
  #isVisitor;
  #isBeginning = false;
  #login;
  #hasDetails;
  #isNewVisitor = false;
  #hasShown = false; // messages of this session
  #isOver = false; // the visitor has ended, or the session was removed
  #endText = "";
  #onRestart;
  /** @type {AbortController | undefined} */
  #listening;
  /** @type {Kept} */
  #kept;
  /** @type {RestClient | null} */
  #rest;

  /**
   * @param {HTMLElement} element
   * @param {(note: string) => void} onRestart replaces the view by one of a new session
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
    this.#isGiven = given !== undefined;
    this.#key = given ?? this.#kept.key ?? randomKey();
    this.url = get("url") || `${this.#place}${this.#key}/`;
    this.isOpen = Boolean(given) && !this.#isVisitor; // the page knows person and session
    this.#login = get("login");
    this.#hasDetails = element.hasAttribute("details");
    this.isClosed = element.hasAttribute("signed-out"); // to this person, until the login
    if (this.isClosed) this.problem = this.#signIn(widgetWords.signedOut);
    this.loadHtml = api ? this.#loadHtml.bind(this) : null;
    this.options = {
      storageKey: this.#storageKeyOf(this.#person),
      // Another site gets no cookie.
      ticket: this.#embed ? () => this.#issueTicket() : null,
      ...(!this.isOpen && {create: !this.isStarted}),
    };
  }

  /** Whether there is a visitor with data of their own. */
  get hasVisitorData() {
    return this.#isVisitor && !this.#isOver && (this.isStarted || Boolean(this.#kept.hasOthers));
  }

  /** Whether another chat can begin: the person has one, and its key was chosen here. */
  get canBegin() {
    return this.isStarted && !this.#isGiven && !this.#isOver && !this.isClosed;
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
    if (this.isClosed) return;
    this.#listening = new AbortController();
    const {signal} = this.#listening;
    client.addEventListener("change", () => this.#onChange(client), {signal});
    client.addEventListener("state", () => this.#onState(client), {signal});
    if (this.isStarted) client.connect();
    else this.#begin(client);
  }

  stop() {
    this.#listening?.abort();
  }

  /** @param {ChatMemoryClient} client */
  #onChange(client) {
    if (this.#isOver && hasUnsent(client)) this.#restart();
    else this.#begin(client);
  }

  /** @param {ChatMemoryClient} client */
  async #begin(client) {
    if (this.isStarted || this.#isBeginning || this.problem || !hasUnsent(client)) return;
    this.#isBeginning = true;
    try {
      // One tab at a time, so that the first messages of two tabs create one visitor.
      if (this.#isVisitor) await alone(this.#nameOf(""), () => this.#createVisitor());
      this.#kept.key = this.#key;
      write(this.#nameOf(this.#person), this.#kept);
      if (!this.#listening?.signal.aborted) client.connect();
    } catch (error) {
      console.error(`chatmemory: the chat can't be started.${this.#adviceOn(error)}`, error);
      this.#report(client, this.#problemOf(client, error));
    }
    this.#isBeginning = false;
  }

  /** @param {unknown} error */
  #adviceOn(error) {
    const {status = 0, message} = /** @type {{status?: number, message: string}} */ (error);
    if (status) return ` ${message}`;
    // A browser hides from a page why another site refuses it.
    if (!this.#embed) return "";
    return ` CHATMEMORY["EMBEDS"] must list ${location.origin} for "${this.#embed}".`;
  }

  async #createVisitor() {
    this.#kept.token ??= read(this.#nameOf("")).token;
    if (this.#kept.token) return;
    const {token} = await rest(this.#rest).createVisitor(this.#embed ? {embed: this.#embed} : {});
    if (token) {
      this.#kept.token = token;
      write(this.#nameOf(""), {token});
    }
    this.#isNewVisitor = true;
  }

  /**
   * @param {ChatMemoryClient} client
   * @param {unknown} error
   */
  #problemOf(client, error) {
    const {status = 0} = /** @type {{status?: number}} */ (error);
    if (status === 401) return {text: words.ended.refused, act: () => {}};
    if (!this.#embed && (status === 403 || status === 409)) {
      return {text: words.ended[4426], action: words.reload, act: () => location.reload()};
    }
    const act = () => {
      this.problem = null;
      this.#begin(client);
    };
    const advice = this.#hasDetails ? this.#adviceOn(error) : "";
    return {text: widgetWords.notStarted + advice, action: widgetWords.tryAgain, act};
  }

  // If the session was removed or the visitor has ended, another one can follow.
  /** @param {ChatMemoryClient} client */
  #onState(client) {
    if (client.state === "live") this.#hasShown = true;
    if (client.state !== "ended") return;
    const code = client.ending?.code;
    const isVisitor = this.#isVisitor && code === CLOSE_UNAUTHENTICATED;
    if (isVisitor && this.#isNewVisitor && !this.#hasShown) {
      console.error("chatmemory: the new visitor is refused. The browser may block its cookie.");
      this.#report(client, {text: words.ended.refused, act: () => {}});
    } else if (this.#login && !isVisitor && code === CLOSE_UNAUTHENTICATED) {
      const {reason = ""} = client.ending ?? {};
      this.#report(client, this.#signIn(words.ended[reason] ?? words.ended[code]));
    } else if (code === CLOSE_NOT_FOUND && this.#isUnknown(client)) {
      console.error(
        `chatmemory: ${this.url} is no chat of this person. The key must be that of one, or a new UUID.`,
      );
      this.#forget({withVisitor: false});
      this.#report(client, {text: widgetWords.unknownChat, act: () => {}});
    } else if (isVisitor || (code === CLOSE_NOT_FOUND && !this.isOpen)) {
      this.#isOver = true;
      this.#forget({withVisitor: isVisitor, last: this.#isVisitor ? this.#key : undefined});
      this.#endText = isVisitor ? widgetWords.visitorEnded : words.ended[CLOSE_NOT_FOUND];
      if (!this.#hasShown || hasUnsent(client)) {
        this.#restart();
      } else {
        const text = `${this.#endText} ${widgetWords.nextMessage}`;
        this.#report(client, {text, action: widgetWords.newChat, act: () => this.#onRestart("")});
      }
    }
  }

  // The page gave a key that is no chat. A visitor's chat that was begun before was removed instead.
  /** @param {ChatMemoryClient} client */
  #isUnknown(client) {
    return this.#isGiven && !this.#hasShown && (client.create || this.isOpen);
  }

  /** @param {string} text */
  #signIn(text) {
    const act = () => (this.#login ? location.assign(this.#login) : location.reload());
    return {text, action: words.signIn, act};
  }

  #restart() {
    const note = this.#hasShown ? this.#endText : "";
    this.stop();
    queueMicrotask(() => this.#onRestart(note)); // the client is still in its event
  }

  // Another tab may already have begun another chat, which stays.
  /** @param {{withVisitor: boolean, last?: string}} what */
  #forget({withVisitor, last}) {
    const name = this.#nameOf(this.#person);
    const {key = this.#key, token, hasOthers} = read(name);
    if (withVisitor && this.#embed) {
      if (token === this.#kept.token) write(name, {});
    } else if (key === this.#key) {
      write(name, withVisitor ? {last} : {token, hasOthers, last});
    }
  }

  /**
   * Take the texts that were not sent in this session: what waited to be sent, and what was refused.
   *
   * @param {ChatMemoryClient} client
   */
  takeUnsent(client) {
    const unsent = [];
    const refused = [];
    for (const entry of client.outbox) {
      if (isUnsent(entry)) unsent.push(entry.text);
      else if (entry.state === "failed") refused.push(entry.text);
    }
    takeStored(this.#storageKeyOf(this.#person));
    return {unsent, refused};
  }

  /** Take the texts that were not sent in this tab before its visitor signed in. */
  takeUnsentOfVisitor() {
    return this.#person ? takeStored(this.#storageKeyOf("")).map(({text}) => text) : [];
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
    const {key, last = ""} = read(this.#nameOf(""));
    write(this.#nameOf(""), {});
    const moved = keys[key ?? last];
    if (moved) write(this.#nameOf(this.#person), {key: moved});
  }

  /** Let the next message begin another chat. This one stays stored, and one of another tab too. */
  beginAnother() {
    const name = this.#nameOf(this.#person);
    write(name, {token: read(name).token, hasOthers: true});
  }

  /** A file with all that the visitor wrote, as a response. */
  exportData() {
    return rest(this.#rest).exportOwnData({format: "markdown"});
  }

  /** Delete the data of the visitor, and end the visitor; resolves to a note for the user. */
  async erase() {
    const note = await this.#eraseVisitor();
    this.#forget({withVisitor: true});
    return note;
  }

  async #eraseVisitor() {
    try {
      const {held} = await rest(this.#rest).eraseVisitor();
      return held.length ? widgetWords.partlyDeleted : widgetWords.deleted;
    } catch (error) {
      if (isRefused(error)) return widgetWords.visitorEnded; // before
      throw error;
    }
  }

  /** @param {string} person */
  #nameOf(person) {
    return `chatmemory:own:${person}:${this.#embed}:${this.#place}`;
  }

  // Of the messages that are not sent yet, in this tab.
  /** @param {string} person */
  #storageKeyOf(person) {
    return `chatmemory:${person}:${this.#place}${this.#embed}`;
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
      throw isRefused(error) ? {code: CLOSE_UNAUTHENTICATED} : {};
    }
  }
}

/** @param {OutboxEntry} entry */
function isUnsent({state, code}) {
  // Refused because the visitor had ended, so the next visitor can send it.
  return code === "unauthenticated" || (state !== "failed" && state !== "stored");
}

/** @param {ChatMemoryClient} client */
function hasUnsent(client) {
  return client.outbox.some(isUnsent);
}

/**
 * Let one tab at a time act. Pages without HTTPS have no locks, and those without storage get none.
 *
 * @param {string} name
 * @param {() => Promise<void>} act
 */
function alone(name, act) {
  if (!navigator.locks) return act();
  return new Promise((resolve) => {
    const run = async () => {
      const acting = act();
      resolve(acting);
      await Promise.allSettled([acting]);
      // The processes of other tabs see what was stored a little later.
      await new Promise((release) => setTimeout(release, STORAGE_MS));
    };
    navigator.locks.request(name, run).catch(run);
  });
}

/** @param {unknown} error */
function isRefused(error) {
  return error instanceof ApiError && error.status === 401;
}

/** @param {RestClient | null} client */
function rest(client) {
  if (client) return client;
  throw new TypeError('<chat-memory> needs the attribute "api".');
}

/**
 * @param {string} name
 * @returns {OutboxEntry[]}
 */
function takeStored(name) {
  try {
    const entries = JSON.parse(sessionStorage.getItem(name) ?? "[]");
    sessionStorage.removeItem(name);
    return entries;
  } catch {
    return [];
  }
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
    if (Object.values(kept).some(Boolean)) localStorage.setItem(name, JSON.stringify(kept));
    else localStorage.removeItem(name);
  } catch {
    // Full or forbidden: the chat ends with the page.
  }
}
