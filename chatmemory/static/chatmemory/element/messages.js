// The node of each message. It stays when the message moves from the outbox, or from a stream, to the
// rows: a new node would lose the focus.

import {beginsTurn, streamKey, turnStart} from "../client/chatmemory-client.js";
import {MAX_REPLACED, MAX_SHOWN_CHARS} from "../shared/constants.js";
import {showTime} from "../shared/times.js";
import {words} from "./chat-words.js";
import {copyButton} from "./clipboard.js";
import {addCodeHeads} from "./code.js";
import {ratingTools} from "./feedback.js";
import {foldIfLong} from "./fold.js";
import {article, button, iconButton, link, setNote, setText, setTools, textBox} from "./nodes.js";
import {activityText, hasMarkup, isQuestion} from "./text.js";

/** @import {ChatMemoryClient} from "../client/chatmemory-client.js" */
/** @import {MessageFrame, OutboxEntry, PathItem, Stream, VersionPlace, WaitingTurn} from "../client/types.d.ts" */
/** @import {Rendered} from "./markdown.js" */
/** @import {Reply} from "./reply.js" */
/** @import {Actions, Hooks} from "./types.d.ts" */

const PENCIL = "M4 20h4L19 9l-4-4L4 16z";
const CIRCLE = "M19.7 10a8 8 0 1 0 0 4M20 5v5h-5";

/** @type {typeof import("./reply.js") | undefined} loaded with the first connection */
let replies;

export class MessageNodes {
  /** @type {Map<string, HTMLElement>} "row:SEQ", "text:TURN:STEP", "out:CLIENT_ID", … */
  #nodes = new Map();
  /** @type {WeakMap<HTMLElement, Reply>} of the nodes that are or were streamed */
  #replies = new WeakMap();
  /** @type {WeakMap<HTMLElement, string>} what the rows show */
  #texts = new WeakMap();
  #client;
  #page;
  /** @type {typeof import("./version.js") | null} */
  #versions = null;
  #actions;
  #hooks;

  /**
   * @param {ChatMemoryClient} client
   * @param {string | null} page address of the session's page
   * @param {Actions} actions
   * @param {Hooks} hooks
   */
  constructor(client, page, actions, hooks) {
    this.#client = client;
    this.#page = page;
    this.#actions = actions;
    this.#hooks = hooks;
    // Replies come over the connection; what fails to load is tried again when it is needed.
    client.addEventListener("state", () => this.loadReplies().catch(() => {}), {once: true});
  }

  /** Load what shows streamed texts and Markdown. */
  async loadReplies() {
    replies ??= await import("./reply.js");
    this.#hooks.onLoad();
  }

  /** @param {number} seq */
  row(seq) {
    return this.#nodes.get(`row:${seq}`);
  }

  /**
   * Reuse a row that the server made.
   *
   * @param {HTMLElement} node
   */
  adopt(node) {
    const seq = Number(node.dataset.seq);
    this.#nodes.set(`row:${seq}`, node);
    addCodeHeads(textBox(node));
    if (node.matches(".cm-user")) foldIfLong(node);
    const isWhole = !node.querySelector(".cm-note a");
    const isPlain = node.matches(".cm-assistant:not([data-html])");
    if (isPlain && isWhole && hasMarkup(textBox(node).textContent ?? ""))
      this.#hooks.onMarkdown(seq);
  }

  prune() {
    for (const [key, node] of this.#nodes) if (!node.isConnected) this.#nodes.delete(key);
  }

  /** After a reset, another message may have the number and revision of a row. */
  forgetRows() {
    for (const key of this.#nodes.keys()) if (key.startsWith("row:")) this.#nodes.delete(key);
  }

  /**
   * @param {PathItem} item
   * @param {{isLast: boolean, isIdle: boolean, endsTurn: boolean}} place
   */
  drawRow({row, version, isOld}, {isLast, isIdle, endsTurn}) {
    const node = this.#rowNode(row);
    node.classList.toggle("cm-old", isOld);
    const isOpen = !isOld && isIdle;
    if (isQuestion(row)) {
      node.classList.toggle("cm-asking", isOpen && isLast);
      this.#drawQuestion(node, row.asks);
    }
    const {canEdit, canAnswerAgain} = this.#permissions(row, isLast);
    const {edit, answerAgain} = this.#actions;
    const again = row.status === "failed" ? words.tryAgain : words.answerAgain;
    const onEdit = () => edit(row, node);
    const onAgain = () => answerAgain(row.seq);
    setTools(node, [
      ...this.#textTools(row, node),
      ...(isOpen && canEdit ? [iconButton(words.edit, PENCIL, "cm-change", onEdit)] : []),
      ...(endsTurn ? this.#ratingTools(row, node) : []),
      ...(isOpen && canAnswerAgain ? [iconButton(again, CIRCLE, "cm-again", onAgain)] : []),
      ...(version ? this.#versionTools(version) : []),
      showTime(document.createElement("time"), row.created_at, this.#client.html || undefined),
    ]);
    node.classList.toggle("cm-newest", isLast);
    return node;
  }

  /**
   * @param {HTMLElement} node
   * @param {MessageFrame["asks"]} question
   */
  async #drawQuestion(node, question) {
    const {setQuestion} = await import("./choices.js");
    setQuestion(node, question, this.#actions.answer, this.#hooks.keep);
  }

  /**
   * A button that copies the message, if all of it is here.
   *
   * @param {MessageFrame} row
   * @param {HTMLElement} node
   */
  #textTools({seq, text, cut, role}, node) {
    if (!text || cut || role === "tool") return [];
    const source = () => this.#client.rows.get(seq)?.text ?? "";
    return [copyButton(source, () => textBox(node), true)];
  }

  /**
   * @param {MessageFrame} row
   * @param {HTMLElement} node
   */
  #ratingTools(row, node) {
    const {turn, role, text, status} = row;
    const isRunning = this.#client.session?.running?.turn === turn;
    if (!turn || !text || role !== "assistant" || status === "failed" || isRunning) return [];
    return ratingTools(this.#client, {...row, turn}, node);
  }

  /** @param {MessageFrame} row */
  #rowNode(row) {
    const key = `row:${row.seq}`;
    let node = this.#nodes.get(key);
    if (!node) {
      const earlier =
        this.#remove(`text:${streamKey(row)}`) ?? this.#remove(`out:${row.client_id}`);
      node = earlier ?? article(row.role);
      this.#nodes.set(key, node);
      node.dataset.seq = String(row.seq);
    }
    if (node.dataset.revision !== String(row.revision)) {
      node.dataset.revision = String(row.revision);
      this.#hooks.onReplace(node);
      this.#fill(node, row);
    }
    this.#texts.set(node, row.text);
    return node;
  }

  /** @param {string} key */
  #remove(key) {
    const node = this.#nodes.get(key);
    this.#nodes.delete(key);
    return node;
  }

  /**
   * @param {HTMLElement} node
   * @param {MessageFrame} row
   */
  #fill(node, row) {
    const {role, status, text} = row;
    const isRendered = "html" in node.dataset && this.#texts.get(node) === text;
    node.className = `cm-row cm-${role} cm-${status}`;
    node.removeAttribute("aria-busy");
    delete node.dataset.html;
    node.toggleAttribute("data-empty", role === "tool" || !text);
    if (role === "tool") return; // steps.js draws it
    const shown = text.slice(0, MAX_SHOWN_CHARS);
    const reply = this.#replies.get(node);
    const isKept = reply ? reply.end(shown) : isRendered;
    const isWhole = isKept && (!reply || reply.isWhole);
    if (!isKept) {
      this.#replies.delete(node);
      setText(node, shown);
      if (role === "user") foldIfLong(node);
    } else if (isWhole) node.dataset.html = "";
    const page = this.#page;
    const isCut = row.cut || text.length > MAX_SHOWN_CHARS;
    setNote(node, noteOf(row), isCut && page ? [link(`${page}${row.seq}/`, words.showWhole)] : []);
    if (role === "assistant" && !isCut && !isWhole && hasMarkup(text))
      this.#hooks.onMarkdown(row.seq);
  }

  /**
   * Show a reply as Markdown, unless it changed meanwhile.
   *
   * @param {Rendered} rendered
   */
  putHtml({seq, revision, html}) {
    const node = this.row(seq);
    if (!node || node.dataset.revision !== String(revision)) return;
    const reply = this.#replies.get(node) ?? (replies && new replies.Reply(textBox(node)));
    if (!reply) return;
    this.#replies.set(node, reply);
    reply.complete(html, this.#client.rows.get(seq)?.text ?? "");
    node.dataset.html = "";
  }

  /**
   * @param {MessageFrame} row
   * @param {boolean} isLast
   */
  #permissions(row, isLast) {
    const {session, rows} = this.#client;
    const oldest = (session?.last_seq ?? 0) - MAX_REPLACED;
    const isWhole = !row.redacted && !row.quarantined && !row.cut;
    return {
      canEdit: row.seq > oldest && isWhole && beginsTurn(row),
      canAnswerAgain:
        isLast &&
        row.role === "assistant" &&
        row.error !== "context_too_long" &&
        turnStart(rows, row.seq) > oldest, // loaded
    };
  }

  /** @param {VersionPlace} place */
  #versionTools(place) {
    if (this.#versions) return this.#versions.versionTools(place, this.#actions.showVersion);
    this.#loadVersions();
    return [];
  }

  async #loadVersions() {
    this.#versions = await import("./version.js");
    this.#hooks.onLoad();
  }

  /**
   * The streamed texts, and a line for what else the run does.
   *
   * @param {boolean | undefined} isShown whether a step shows the running tool
   */
  drawRun(isShown) {
    const {session, streams} = this.#client;
    const activity = this.#client.activity.filter(({kind}) => !isShown || kind !== "tool");
    const loaded = replies;
    if (streams.size && !loaded) this.loadReplies().catch(() => {});
    const texts = loaded
      ? [...streams.values()].map((stream) => this.#streamNode(stream, loaded.Reply))
      : [];
    if (!session?.running || ((isShown || texts.length) && !activity.length)) return texts;
    const node = this.#node("activity", () => {
      const made = article("assistant");
      made.classList.add("cm-activity");
      made.toggleAttribute("data-empty", true);
      return made;
    });
    setNote(node, activity.map(activityText).join(" ") || words.thinking);
    return [...texts, node];
  }

  /**
   * @param {Stream} stream
   * @param {typeof Reply} Type
   */
  #streamNode(stream, Type) {
    return this.#node(`text:${stream.key}`, () => {
      const node = article("assistant");
      node.setAttribute("aria-busy", "true"); // screen readers wait until it is complete
      const reply = new Type(textBox(node));
      reply.stream = stream;
      reply.draw();
      this.#replies.set(node, reply);
      return node;
    });
  }

  /**
   * A streamed text has changed; false if it is not shown.
   *
   * @param {string} key
   */
  noteStream(key) {
    const node = this.#nodes.get(`text:${key}`);
    const stream = this.#client.streams.get(key);
    const reply = node && this.#replies.get(node);
    if (!reply || !stream) return false;
    reply.stream = stream;
    return true;
  }

  drawStreams() {
    for (const key of this.#client.streams.keys()) {
      const node = this.#nodes.get(`text:${key}`);
      if (node) this.#replies.get(node)?.draw();
    }
  }

  /** Messages without a row: waiting turns, then the outbox. */
  drawPending() {
    const {rows, session, outbox} = this.#client;
    const known = new Set([...rows.values()].map((row) => row.client_id));
    const waiting = (session?.waiting ?? []).filter(({turn}) => !known.has(turn));
    for (const {turn} of waiting) known.add(turn);
    const unsent = outbox.filter((entry) => !known.has(entry.client_id));
    return [
      ...waiting.map((turn) => this.#waitingNode(turn)),
      ...unsent.map((entry) => this.#outboxNode(entry)),
    ];
  }

  /** @param {WaitingTurn} turn */
  #waitingNode({turn, text}) {
    const node = this.#pendingNode(turn, text ?? "");
    node.className = "cm-row cm-user cm-unsent cm-waiting";
    const cancel = button(words.cancel, () => this.#actions.cancel(turn, cancel));
    setNote(node, words.outbox.queued, [cancel]);
    return node;
  }

  /** @param {OutboxEntry} entry */
  #outboxNode(entry) {
    const {client_id: id, text, state, code} = entry;
    const node = this.#pendingNode(id, text);
    node.className = `cm-row cm-user ${state === "failed" ? "cm-failed" : "cm-unsent"}`;
    const texts = words.outbox;
    const discard = button(words.discard, () => this.#client.discard(id));
    if (state === "failed") {
      const retry = button(words.sendAgain, () => this.#client.retry(id));
      const edit = button(words.edit, () => this.#actions.editUnsent(entry));
      setNote(node, refusalOf(entry), [retry, edit, discard]);
    } else if (this.#client.state !== "live" && state !== "stored") {
      const isFirst = this.#client.create && this.#client.state === "connecting";
      const note = this.#client.state === "ended" ? texts.new : texts.offline;
      setNote(node, isFirst ? texts.sent : note);
    } else if (state === "held") {
      setNote(node, texts[code ?? ""] ?? texts.held, [discard]);
    } else {
      setNote(node, texts[state] ?? "", state === "new" ? [discard] : []);
    }
    return node;
  }

  /**
   * @param {string} id
   * @param {string} text
   */
  #pendingNode(id, text) {
    return this.#node(`out:${id}`, () => {
      const node = article("user");
      setText(node, text.slice(0, MAX_SHOWN_CHARS));
      foldIfLong(node);
      return node;
    });
  }

  /**
   * @param {string} key
   * @param {() => HTMLElement} make
   */
  #node(key, make) {
    let node = this.#nodes.get(key);
    if (!node) {
      node = make();
      this.#nodes.set(key, node);
    }
    return node;
  }
}

/** @param {MessageFrame} row */
export function noteOf({redacted, quarantined, status, error}) {
  const notes = [
    redacted && words.redacted,
    quarantined && words.quarantined,
    status === "interrupted" && words.interrupted,
    status === "failed" && (words.errors[error] ?? words.failed),
  ];
  return notes.filter(Boolean).join(" ");
}

/** @param {OutboxEntry} entry */
export function refusalOf({code = "", message = "", replaces}) {
  const texts = words.refused;
  return texts[code === "conflict" && replaces != null ? "outdated" : code] ?? message;
}
