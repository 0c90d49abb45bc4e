// Connects the element's parts to the client, and decides what is drawn.

import {ChatMemoryClient} from "../client/chatmemory-client.js";
import {arrange} from "../shared/arrange.js";
import {CLOSE_NOT_FOUND, CLOSE_TOO_MANY_CONNECTIONS} from "../shared/constants.js";
import {languageOf} from "../shared/language.js";
import {bannerOf} from "./banner.js";
import {words} from "./chat-words.js";
import {Composer} from "./composer.js";
import {MessageNodes, refusalOf} from "./messages.js";
import {setLabel} from "./nodes.js";
import {ScrollPosition} from "./scroll.js";
import {buildSkeleton} from "./skeleton.js";
import {firstWords, isQuestion, visible} from "./text.js";

/** @import {MessageFrame, OutboxEntry, PathItem, VersionPlace} from "../client/types.d.ts" */
/** @import {Access} from "../widget/access.js" */

const MAX_DRAW_DELAY_MS = 250; // a hidden page has no animation frames
const TEXT_MS = 120; // between two drawings of streamed text

export class ChatView {
  client;

  #element;
  #root;
  #access;
  #parts;
  #composer;
  /** @type {import("./editor.js").Editor | null} loaded for the first edit */
  #editor = null;
  /** @type {import("./markdown.js").MarkdownLoader | null} loaded for the first reply */
  #markdown = null;
  #nodes;
  /** @type {import("./steps.js").Steps | null | undefined} loaded for the first step */
  #steps;
  #scroll;
  #isDrawn = true;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #textTimer;
  #textDrawnAt = -Infinity;
  /** @type {WeakSet<OutboxEntry>} refused ones that stay among the messages */
  #left = new WeakSet();
  #title = "";
  /** @type {number | null} the newest message that was announced; null before the first sync */
  #newest = null;
  /** @type {Map<number, number>} user message → the first row of the older version shown instead */
  #chosen = new Map();
  /** @type {HTMLElement | undefined} loaded for the first older version */
  #oldNotice;
  /** @type {AbortController | undefined} of the listeners outside the element */
  #listening;

  /**
   * @param {HTMLElement} element
   * @param {HTMLElement} root the element itself, or a node in its shadow root
   * @param {Access | null} access of a widget
   */
  constructor(element, root, access = null) {
    this.#element = element;
    this.#root = root;
    this.#access = access;
    this.#parts = buildSkeleton(element, root);
    const url = access?.url ?? element.getAttribute("url") ?? "";
    const page = element.getAttribute("page");
    const person = element.getAttribute("person") || null;
    const storageKey = access?.options.storageKey ?? `chatmemory:${person ?? ""}:${url}`;
    this.client = new ChatMemoryClient(url, {
      create: element.hasAttribute("create"),
      html: languageOf(element) ?? "",
      person,
      storageKey,
      ...access?.options,
    });
    // An earlier page may have sent these; their client_id prevents a duplicate.
    for (const entry of this.client.outbox) this.#left.add(entry);
    this.#scroll = new ScrollPosition(this.#parts, () => this.#isLive() && this.#loadOlder());
    this.#composer = new Composer(this.#parts, this.client, `${storageKey}:draft`, (text) =>
      this.#send(text),
    );
    this.#nodes = this.#makeNodes(page);
    for (const node of this.#parts.rows.querySelectorAll("[data-seq]")) {
      if (node instanceof HTMLElement) this.#nodes.adopt(node);
    }
    this.#listenToClient();
    this.#listenToParts();
    this.#draw();
  }

  /** Connect, and follow the page until `stop`. */
  start() {
    if (this.#listening) return;
    this.#listenToPage();
    this.#scroll.start();
    this.#scroll.toNewest();
    if (this.#access) this.#access.start(this.client);
    else this.client.connect();
    this.#draw();
  }

  /** Release all that would keep the removed element alive. */
  stop() {
    this.#listening?.abort();
    this.#listening = undefined;
    this.#scroll.stop();
    clearTimeout(this.#textTimer);
    this.#textTimer = undefined;
    this.#access?.stop();
    this.client.close();
  }

  focus() {
    this.#composer.focusUnlessTouch();
  }

  /** @param {string | null} page */
  #makeNodes(page) {
    return new MessageNodes(
      this.client,
      page,
      {
        edit: (row, node) => this.#edit(row, node),
        answerAgain: (seq) => this.#replace(() => this.client.regenerate(seq)),
        answer: (choice) => this.#replace(() => this.client.send(choice)),
        showVersion: (place, number, name) => this.#showVersion(place, number, name),
        cancel: (turn, button) => this.#cancel(turn, button),
        editUnsent: (entry) => this.#editUnsent(entry),
      },
      {
        onReplace: (node) => this.#editor?.abandonAt(node),
        onLoad: () => this.#draw(),
        onMarkdown: (seq) => this.#wantMarkdown(seq),
        keep: (change) => this.#scroll.keep(change),
      },
    );
  }

  #listenToClient() {
    const {client} = this;
    client.addEventListener("state", () => this.#announce("state", {state: client.state}));
    client.addEventListener("change", () => {
      this.#draw();
      if (this.#isLive()) this.#announceMessages();
    });
    for (const kind of ["text", "block"]) {
      client.addEventListener(kind, (event) => {
        const {key} = /** @type {CustomEvent} */ (event).detail;
        if (this.#nodes.noteStream(key)) this.#drawStreams();
      });
    }
    client.addEventListener("reset", () => {
      this.#markdown?.clear();
      this.#nodes.forgetRows();
      this.#newest = null;
    });
    client.addEventListener("synced", () => {
      this.#markdown?.load();
      this.#announceMessages();
    });
  }

  #listenToParts() {
    const {stop, older, empty, bannerButton} = this.#parts;
    stop.addEventListener("click", () => {
      this.client.stop();
      this.#composer.focusUnlessTouch(); // the button disappears
    });
    older.addEventListener("click", () => this.#loadOlder());
    for (const button of empty.querySelectorAll("button")) {
      button.addEventListener("click", () => this.#suggest(button.textContent ?? ""));
    }
    bannerButton.addEventListener("click", () => this.#onBannerButton());
  }

  #listenToPage() {
    this.#listening = new AbortController();
    const {signal} = this.#listening;
    const wake = () => {
      if (this.client.state === "waiting") this.client.connect();
      this.#draw(); // a new chat is not connected, but states whether there is a network
    };
    addEventListener("online", wake, {signal});
    addEventListener("offline", () => this.#renewSocket(), {signal});
    addEventListener("pageshow", wake, {signal});
    document.addEventListener("visibilitychange", () => document.hidden || wake(), {signal});
  }

  /** @param {number} seq of a reply that is shown as plain text */
  async #wantMarkdown(seq) {
    try {
      const [{MarkdownLoader}] = await Promise.all([
        import("./markdown.js"),
        this.#nodes.loadReplies(),
      ]);
      this.#markdown ??= new MarkdownLoader(
        this.#access?.loadHtml ?? this.#element.getAttribute("page"),
        () => this.#isLive(),
        (messages) => {
          this.#scroll.keep(() => {
            for (const message of messages) this.#nodes.putHtml(message);
          });
        },
      );
      this.#markdown.want(seq);
    } catch {
      this.#nodes.row(seq)?.removeAttribute("data-revision"); // the next drawing tries again
      return;
    }
    this.#draw(); // and load all that is wanted
  }

  // Without a network a socket stays open for up to a minute.
  #renewSocket() {
    if (!this.#isLive()) return this.#draw();
    this.client.close();
    this.client.connect();
  }

  #isLive() {
    return this.client.state === "live";
  }

  // Several changes between two frames of the screen are drawn together.
  #draw() {
    if (!this.#isDrawn) return;
    this.#isDrawn = false;
    const draw = () => {
      if (this.#isDrawn) return;
      this.#isDrawn = true;
      if (!this.#element.isConnected) return; // it would forget all rows; `start` draws again
      this.#scroll.keep(() => this.#drawNow());
    };
    requestAnimationFrame(draw);
    setTimeout(draw, MAX_DRAW_DELAY_MS);
  }

  // Each time, the browser lays out and paints the page.
  #drawStreams() {
    if (this.#textTimer) return;
    const wait = this.#textDrawnAt + TEXT_MS - performance.now();
    this.#textTimer = setTimeout(() => {
      this.#textTimer = undefined;
      this.#textDrawnAt = performance.now();
      this.#scroll.keep(() => this.#nodes.drawStreams());
    }, wait);
  }

  #drawNow() {
    const {client} = this;
    const {rows, tail, older, empty} = this.#parts;
    const isRemoved = client.state === "ended" && client.ending?.code === CLOSE_NOT_FOUND;
    // While the client catches up it may have gaps.
    const isKnown = isRemoved || (client.session !== null && client.state !== "connecting");
    if (isKnown) {
      this.#drawRows();
      older.hidden = !client.hasOlder;
    }
    this.#takeRefused();
    arrange(tail, this.#nodes.drawPending());
    this.#nodes.prune();
    this.#editor?.abandonIfHidden();
    const isNew = client.state === "idle" && client.create;
    empty.hidden =
      isRemoved || !(isKnown || isNew) || rows.childElementCount + tail.childElementCount > 0;
    this.#drawBanner();
    this.#drawStop();
    this.#composer.update();
    this.#announceTitle();
    this.#markdown?.load();
    // Superseded messages are hidden: a loaded page may leave the log half empty.
    if (this.#scroll.hasRoom && this.#isLive()) this.#loadOlder();
  }

  #drawRows() {
    const {rows, tail} = this.#parts;
    const path = this.#fold(this.client.path(this.#chosen));
    const last = path.at(-1);
    const isIdle = this.#isIdle();
    const shown = path.map((item, index) => {
      const endsTurn = path[index + 1]?.row.turn !== item.row.turn;
      return this.#nodes.drawRow(item, {isLast: item === last, isIdle, endsTurn});
    });
    const isOld = Boolean(last?.isOld);
    arrange(rows, [
      ...shown,
      ...(isOld && this.#oldNotice
        ? [this.#oldNotice]
        : this.#nodes.drawRun(this.#steps?.isRunning)),
    ]);
    this.#steps?.draw(path, this.#nodes);
    tail.hidden = isOld;
    if (this.client.session?.running) this.#composer.setPlaceholder(words.next);
    else this.#composer.setPlaceholder(isQuestion(last?.row) ? words.answer : words.placeholder);
  }

  /** @param {PathItem[]} path */
  #fold(path) {
    const hasSteps = path.some(({row}) => row.calls || row.reasoning || row.role === "tool");
    if (hasSteps && this.#steps === undefined) this.#loadSteps();
    return this.#steps?.fold(path) ?? path;
  }

  async #loadSteps() {
    this.#steps = null;
    try {
      const {Steps} = await import("./steps.js");
      const page = this.#element.getAttribute("page");
      this.#steps = await Steps.load(this.client, page, this.#parts.rows);
      this.#draw();
    } catch {
      this.#steps = undefined; // the next drawing tries again
    }
  }

  // Whether a replacement would not conflict with a turn or an unsent message.
  #isIdle() {
    const {session, outbox} = this.client;
    if (!session || session.running || session.waiting?.length || session.archived) return false;
    return outbox.every(({state}) => state === "failed");
  }

  #drawBanner() {
    const {banner, bannerText, bannerButton} = this.#parts;
    const {state} = this.client;
    const hasDetails = this.#element.hasAttribute("details");
    const {text, action = ""} =
      this.#access?.problem ?? bannerOf(this.client, {isOnline: navigator.onLine, hasDetails});
    // Screen readers announce the text whenever it is set.
    if (bannerText.textContent !== text) bannerText.textContent = text;
    bannerButton.textContent = action;
    bannerButton.hidden = !action;
    banner.hidden = !text;
    banner.classList.toggle("cm-ended", state === "ended" || this.#access?.problem != null);
    this.#element.dataset.state = this.#root.dataset.state = state;
  }

  #drawStop() {
    const {stop} = this.#parts;
    const {session, stopping} = this.client;
    const turn = session?.running?.turn;
    const isStopping = stopping === turn;
    stop.hidden = !turn;
    stop.disabled = !turn || isStopping || !this.#isLive();
    setLabel(stop, turn && isStopping ? words.stopping : words.stop);
  }

  #announceTitle() {
    const {title, session, hasOlder} = this.client;
    if (!session) return;
    const path = title || hasOlder ? [] : this.client.path();
    const first = path.find(({row}) => row.role === "user");
    const shown = visible(title || firstWords(first?.row.text ?? ""));
    if (!shown || shown === this.#title) return;
    this.#title = shown;
    this.#announce("title", {title: shown});
  }

  #announceMessages() {
    const last = this.client.session?.last_seq;
    if (last === undefined) return; // a reset
    const known = this.#newest ?? last;
    this.#newest = last;
    for (let seq = known + 1; seq <= last; seq += 1) {
      const row = this.client.rows.get(seq);
      if (row) this.#announce("message", {seq, role: row.role, status: row.status, text: row.text});
    }
  }

  /**
   * @param {string} name
   * @param {object} detail
   */
  #announce(name, detail) {
    const init = {bubbles: true, composed: true, detail};
    this.#element.dispatchEvent(new CustomEvent(`chatmemory:${name}`, init));
  }

  /**
   * @param {MessageFrame} row
   * @param {HTMLElement} node
   */
  async #edit(row, node) {
    const {Editor} = await import("./editor.js");
    this.#editor ??= new Editor(
      this.client,
      (seq, text) => this.#replace(() => this.client.edit(seq, text)),
      (text) => this.#composer.restore(text),
    );
    this.#editor.open(row, node);
  }

  // What is refused, or does not begin, is not stored: its text returns to the box if that is empty.
  #takeRefused() {
    const {client} = this;
    const stored = new Set([...client.rows.values()].map((row) => row.client_id));
    const refused = client.outbox.filter(
      (entry) =>
        entry.state === "failed" &&
        entry.replaces == null &&
        !entry.content &&
        !stored.has(entry.client_id) && // its answer was lost
        (entry.code === "refused" || client.create) &&
        !this.#left.has(entry),
    );
    if (!refused.length) return;
    if (this.#parts.text.value) {
      for (const entry of refused) this.#left.add(entry);
      return;
    }
    for (const {client_id: id} of refused) client.discard(id);
    this.#composer.restore(refused.map(({text}) => text).join("\n"), refusalOf(refused[0]));
  }

  /** @param {string} text */
  #send(text) {
    this.client.send(text);
    this.#chosen.clear();
    this.#scroll.isPinned = true;
  }

  /** @param {string} text */
  #suggest(text) {
    this.#send(text);
    this.#composer.focusUnlessTouch(); // the button disappears
  }

  /** @param {() => void} act */
  #replace(act) {
    act();
    this.#scroll.isPinned = true;
    this.#composer.focusUnlessTouch();
  }

  /**
   * @param {string} turn
   * @param {HTMLButtonElement} button
   */
  async #cancel(turn, button) {
    button.disabled = true;
    try {
      await this.client.cancel(turn);
      this.#composer.focusUnlessTouch(); // the button disappears with the turn
    } catch {
      button.disabled = false;
    }
  }

  /** @param {OutboxEntry} entry */
  #editUnsent({client_id: id, text}) {
    if (!this.client.discard(id)) return;
    this.#composer.restore(text);
    this.#composer.focus();
  }

  /**
   * @param {VersionPlace} place
   * @param {number} number
   * @param {string} buttonClass
   */
  async #showVersion(place, number, buttonClass) {
    const {showVersion, oldNotice} = await import("./version.js");
    this.#oldNotice ??= oldNotice(() => this.#showNewest());
    const parts = {
      client: this.client,
      chosen: this.#chosen,
      scroll: this.#scroll,
      nodeOf: (/** @type {number} */ seq) => this.#nodes.row(seq),
      draw: () => this.#drawNow(),
    };
    await showVersion(parts, place, number, buttonClass);
  }

  #showNewest() {
    this.#chosen.clear();
    this.#drawNow();
    this.#scroll.toNewest();
    this.#composer.focusUnlessTouch();
  }

  async #loadOlder() {
    const {log, older} = this.#parts;
    if (!this.client.hasOlder || older.textContent === words.loading) return;
    older.textContent = words.loading; // not disabled: it would lose the focus
    try {
      await this.client.fetchOlder();
    } catch {
      // The button remains.
    }
    older.textContent = words.older;
    if (!this.client.hasOlder && older.matches(":focus")) log.focus({preventScroll: true});
  }

  // Dismiss the notice, reconnect here, or reload, which may lead to the sign-in.
  #onBannerButton() {
    if (this.#access?.problem) {
      this.#access.problem.act();
      this.#draw();
    } else if (this.#isLive()) {
      this.client.lost = 0;
      this.#draw();
    } else if (this.client.ending?.code === CLOSE_TOO_MANY_CONNECTIONS) {
      this.client.connect();
    } else {
      location.reload();
    }
  }
}
