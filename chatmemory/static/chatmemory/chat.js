// <chat-memory url="/ws/chat/KEY/" session="KEY">: a session to read and to write in.
//
// Optional: `page`, the address of the session's page (Markdown and long messages come from there;
// without it replies stay plain text); `person`, who writes (unsent messages are kept apart);
// `create`, to make a session that is new; `details`, to name what an operator has to fix. Rows that
// are in the element already are kept.
//
// What people and models say goes into the page as text. Only what the server rendered and cleaned
// goes in as HTML.

import {ChatMemoryClient, beginsTurn, streamKey} from "./chatmemory-client.js";
import {
  appendText,
  arrange,
  article,
  button,
  drawTools,
  link,
  setNote,
  setText,
  visible,
} from "./chat-nodes.js";
import {words} from "./chat-words.js";

export {words};

const MAX_SHOWN = 30_000;
const MAX_REPLACED = 200; // messages, to which an edit may reach back
const MAX_RENDERED = 100; // rows asked for at a time
const NEAR_PIXELS = 80;
const MARKUP = /[*_`#<>|~[\]\\&\n]|^\s*(?:[-+=]|\d+[.)])/;
const MAX_CHOICES = 8;
const MAX_CHOICE = 80; // characters
const NOTHING = /^[\s\p{Cf}\u115f\u1160\u2800\u3164\uffa0]*$/u;

const skeleton = document.createElement("template");
skeleton.innerHTML = `
<div class="cm-banner" role="status" hidden><span></span><button type="button" class="cm-link"></button></div>
<div class="cm-frame">
  <div class="cm-log" role="log" aria-live="polite" tabindex="0">
    <div class="cm-lane">
      <button type="button" class="cm-older cm-link" hidden></button>
      <p class="cm-empty" hidden></p>
      <div class="cm-tail"></div>
    </div>
  </div>
  <button type="button" class="cm-newer" hidden></button>
</div>
<form class="cm-composer">
  <div class="cm-box">
    <textarea rows="1" name="text" autocomplete="off" aria-describedby=""></textarea>
    <button type="button" class="cm-round cm-stop" hidden><svg viewBox="0 0 24 24" width="20" height="20" aria-hidden="true"><rect x="6" y="6" width="12" height="12" rx="2" fill="currentColor"/></svg></button>
    <button type="submit" class="cm-round cm-send" disabled><svg viewBox="0 0 24 24" width="20" height="20" aria-hidden="true"><path d="M12 19V5M5.5 11.5 12 5l6.5 6.5" fill="none" stroke="currentColor" stroke-width="2.2" stroke-linecap="round" stroke-linejoin="round"/></svg></button>
  </div>
  <p class="cm-hint" aria-live="polite"></p>
</form>`;

const changing = document.createElement("template");
changing.innerHTML = `
<form class="cm-change-form" aria-live="off">
  <textarea rows="1" name="text" autocomplete="off"></textarea>
  <div><button type="button" class="cm-button cm-quiet"></button><button type="submit" class="cm-button"></button></div>
</form>`;

export class ChatMemory extends HTMLElement {
  #client;
  #nodes = new Map(); // "row:SEQ", "text:TURN:STEP", "out:CLIENT_ID" → article
  #unrendered = new Set(); // seqs of replies whose Markdown is still to come
  #isRendering = false;
  #resets = 0;
  #isDrawn = true;
  #isPinned = true; // the newest message is in view, and stays there
  #chosen = new Map(); // the user's message → where the older version begins that is shown instead
  #changing = null; // {before, node, form} of the message that is being changed
  #parts;

  connectedCallback() {
    if (this.#parts) {
      this.#client.connect();
      return;
    }
    this.#build();
    const key = `chatmemory:${this.getAttribute("person") ?? ""}:${this.getAttribute("url")}`;
    this.#client = new ChatMemoryClient(this.getAttribute("url"), {
      create: this.hasAttribute("create"),
      storageKey: key,
    });
    this.#client.addEventListener("change", () => this.#draw());
    this.#client.addEventListener("text", ({detail}) => this.#grow(detail));
    this.#client.addEventListener("reset", () => this.#forgetRows());
    this.#client.addEventListener("synced", () => this.#render());
    this.#client.connect();
    this.#draw();
  }

  disconnectedCallback() {
    this.#client.close();
  }

  get client() {
    return this.#client;
  }

  // Set-up

  #build() {
    const rows = this.querySelector(".cm-rows") ?? document.createElement("div");
    rows.className = "cm-rows";
    rows.querySelector(".cm-earlier")?.remove();
    this.replaceChildren(skeleton.content.cloneNode(true));
    const part = (name) => this.querySelector(`.cm-${name}`);
    this.#parts = {
      rows,
      banner: part("banner"),
      log: part("log"),
      older: part("older"),
      empty: part("empty"),
      tail: part("tail"),
      newer: part("newer"),
      form: part("composer"),
      text: this.querySelector("textarea"),
      stop: part("stop"),
      send: part("send"),
      hint: part("hint"),
    };
    const {log, tail, older, newer, form, text, stop, send, hint, banner, empty} = this.#parts;
    tail.before(rows);
    for (const node of rows.querySelectorAll("[data-seq]")) this.#adopt(node);

    log.setAttribute("aria-label", words.log);
    text.setAttribute("aria-label", words.label);
    text.placeholder = words.placeholder;
    hint.id = `cm-hint-${Math.random().toString(36).slice(2)}`;
    text.setAttribute("aria-describedby", hint.id);
    older.textContent = words.older;
    newer.textContent = words.newer;
    empty.textContent = words.empty;
    for (const [button, label] of [[stop, words.stop], [send, words.send]]) {
      button.title = label;
      button.setAttribute("aria-label", label);
    }

    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
    text.addEventListener("input", () => this.#measure());
    text.addEventListener("keydown", (event) => {
      if (!isSending(event)) return;
      event.preventDefault();
      this.#send();
    });
    stop.addEventListener("click", () => {
      this.#client.stop();
      this.#focusBox(); // the button goes with the run
    });
    older.addEventListener("click", () => this.#loadOlder());
    newer.addEventListener("click", () => this.#toNewest());
    banner.querySelector("button").addEventListener("click", () => this.#mend());
    log.addEventListener("scroll", () => this.#onScroll(), {passive: true});
    new ResizeObserver(() => this.#isPinned && this.#toNewest()).observe(log);
    const wake = () => this.#client.state === "waiting" && this.#client.connect();
    addEventListener("online", wake);
    addEventListener("offline", () => this.#draw());
    addEventListener("pageshow", wake);
    document.addEventListener("visibilitychange", () => document.hidden || wake());
    this.#toNewest();
    if (!isTouch()) text.focus({preventScroll: true});
  }

  // Take over a row that the server put into the page.
  #adopt(node) {
    this.#nodes.set(`row:${node.dataset.seq}`, node);
    const isWhole = !node.querySelector(".cm-note a");
    const isPlain = node.matches(".cm-assistant:not([data-html])");
    if (isPlain && isWhole && MARKUP.test(node.querySelector(".cm-text").textContent)) {
      this.#unrendered.add(Number(node.dataset.seq));
    }
  }

  // Writing

  #send() {
    const {text} = this.#parts;
    if (!this.#isSendable()) return;
    this.#client.send(text.value);
    text.value = "";
    this.#chosen.clear();
    this.#isPinned = true;
    this.#measure();
    text.focus();
  }

  #isSendable() {
    return this.#isGood(this.#parts.text.value);
  }

  #isGood(value) {
    return !NOTHING.test(value) && this.#tooLongBy(value) <= 0 && !this.#client.session?.archived;
  }

  // Characters are counted as the server does, not in UTF-16 units.
  #tooLongBy(value) {
    const most = this.#client.limits.max_message_chars ?? Infinity;
    return value.length <= most ? value.length - most : [...value].length - most;
  }

  #measure() {
    const {text, send, hint} = this.#parts;
    const most = this.#client.limits.max_message_chars ?? Infinity;
    const by = this.#tooLongBy(text.value);
    hint.classList.toggle("cm-over", by > 0);
    let said = "";
    if (by > 0) said = words.tooLong(by);
    else if (-by < most / 10) said = words.length(most + by, most);
    if (hint.textContent !== said) hint.textContent = said;
    text.setAttribute("aria-invalid", by > 0);
    send.disabled = !this.#isSendable();
    fit(text);
  }

  // Put a text back into the box, before what is there.
  #putBack(said) {
    const box = this.#parts.text;
    box.value = box.value ? `${said}\n${box.value}` : said;
    this.#measure();
  }

  #focusBox() {
    if (!isTouch()) this.#parts.text.focus({preventScroll: true});
  }

  // Drawing: what the client holds, as nodes; a node is kept as long as what it shows.

  #draw() {
    if (!this.#isDrawn) return;
    this.#isDrawn = false;
    const draw = () => {
      if (this.#isDrawn) return;
      this.#isDrawn = true;
      this.#keepPlace(() => this.#drawNow());
    };
    requestAnimationFrame(draw);
    setTimeout(draw, 250); // a hidden page has no frames
  }

  #drawNow() {
    const {rows, tail, older, empty, stop, text} = this.#parts;
    const client = this.#client;
    // While it catches up the client has holes; till then the old rows stay.
    const isGone = client.state === "ended" && client.ending.code === 4404;
    const isKnown = isGone || (client.session !== null && client.state !== "connecting");
    const running = client.session?.running?.turn;
    if (isKnown) {
      const path = client.path(this.#chosen);
      const last = path.at(-1);
      const said = path.map((item) => this.#rowNode(item, item === last));
      arrange(rows, [...said, ...(last?.isOld ? [this.#oldNode()] : this.#coming())]);
      tail.hidden = Boolean(last?.isOld);
      older.hidden = !client.hasOlder;
      if (running) text.placeholder = words.next;
      else text.placeholder = isAsking(last?.row) ? words.answer : words.placeholder;
    }
    arrange(tail, this.#pending());
    this.#forgetNodes();
    if (this.#changing && !this.#changing.node.isConnected) this.#giveUpChange();
    empty.hidden = isGone || !isKnown || rows.childElementCount + tail.childElementCount > 0;
    this.#drawBanner();
    stop.hidden = !running;
    stop.disabled = !running || client.stopping === running || client.state !== "live";
    stop.title = client.stopping === running ? words.stopping : words.stop;
    stop.setAttribute("aria-label", stop.title);
    text.disabled = Boolean(client.session?.archived);
    this.#measure();
    this.#announceTitle();
    this.#render();
    this.#fillUp();
  }

  #rowNode({row, version, isOld}, isLast) {
    const key = `row:${row.seq}`;
    let node = this.#nodes.get(key);
    if (!node) {
      node = this.#take(`text:${streamKey(row)}`) ?? this.#take(`out:${row.client_id}`) ?? article(row.role);
      this.#nodes.set(key, node);
      node.dataset.seq = row.seq;
    }
    if (node.dataset.revision !== String(row.revision)) {
      node.dataset.revision = row.revision;
      this.#fill(node, row);
    }
    node.classList.toggle("cm-old", isOld);
    this.#drawAsking(node, isLast && !isOld && isAsking(row) && this.#isIdle() ? row.asks : null);
    const can = isOld || !this.#isIdle() ? {} : this.#canDo(row, isLast);
    drawTools(node, [
      ...(can.change ? [button(words.edit, () => this.#change(row, node), "cm-change")] : []),
      ...(version ? this.#versionTools(version) : []),
      ...(can.again ? [button(words.answerAgain, () => this.#answerAgain(row.seq), "cm-again")] : []),
    ]);
    return node;
  }

  // Whether nothing is on its way that a replacement would meet.
  #isIdle() {
    const {session, outbox} = this.#client;
    const isFree = !session.running && !session.waiting?.length && !session.archived;
    return isFree && outbox.every(({state}) => state === "failed");
  }

  #canDo(row, isLast) {
    if (this.#client.session.last_seq - row.seq >= MAX_REPLACED) return {};
    const isWhole = !row.redacted && !row.quarantined && !row.cut;
    return {change: beginsTurn(row) && isWhole, again: row.role === "assistant" && isLast};
  }

  // Mark a message that waits for an answer; where it has choices, each is a button.
  #drawAsking(node, asks) {
    const mark = node.querySelector(":scope > .cm-asks");
    if (Boolean(asks) === Boolean(mark)) return;
    if (mark) {
      mark.remove();
      return;
    }
    const made = document.createElement("p");
    made.className = "cm-asks";
    made.append(words.asks);
    for (const choice of choicesOf(asks)) {
      made.append(button(visible(choice), () => this.#answer(choice), "cm-choice"));
    }
    node.querySelector(".cm-note").after(made);
  }

  #answer(choice) {
    this.#client.send(choice);
    this.#isPinned = true;
    this.#focusBox();
  }

  #fill(node, row) {
    if (this.#changing?.node === node) this.#giveUpChange();
    node.className = `cm-row cm-${row.role}${row.status === "complete" ? "" : ` cm-${row.status}`}`;
    node.removeAttribute("aria-busy");
    delete node.dataset.html;
    const text = row.text ?? "";
    node.toggleAttribute("data-empty", !text);
    setText(node, text.slice(0, MAX_SHOWN));
    const said = [];
    if (row.redacted) said.push(words.redacted);
    if (row.quarantined) said.push(words.quarantined);
    if (row.status === "interrupted") said.push(words.interrupted);
    if (row.status === "failed") said.push(words.errors[row.error] ?? words.failed);
    const page = this.getAttribute("page");
    const links = (row.cut || text.length > MAX_SHOWN) && page ? [link(`${page}${row.seq}/`, words.whole)] : [];
    setNote(node, said.join(" "), links);
    if (page && row.role === "assistant" && text.length <= MAX_SHOWN && !row.cut && MARKUP.test(text)) {
      this.#unrendered.add(row.seq);
    }
  }

  #streamNode(stream) {
    const key = `text:${stream.key}`;
    let node = this.#nodes.get(key);
    if (!node) {
      node = article("assistant");
      node.setAttribute("aria-busy", "true"); // it is read out when it is finished
      this.#nodes.set(key, node);
      setText(node, stream.text);
    }
    return node;
  }

  // A streamed text has grown by a piece, or is another one.
  #grow({key, piece}) {
    const node = this.#nodes.get(`text:${key}`);
    const stream = this.#client.streams.get(key);
    if (!node || !stream) return;
    this.#keepPlace(() => {
      if (piece === null) setText(node, stream.text);
      else appendText(node, piece);
    });
  }

  // What the run says and does just now.
  #coming() {
    const {session, streams, activity} = this.#client;
    const said = [...streams.values()].map((stream) => this.#streamNode(stream));
    if (!session?.running || (said.length && !activity.length)) return said;
    let node = this.#nodes.get("activity");
    if (!node) {
      node = article("assistant");
      node.classList.add("cm-activity");
      node.toggleAttribute("data-empty", true);
      this.#nodes.set("activity", node);
    }
    setNote(node, activity.map(activityText).join(" ") || words.thinking);
    return [...said, node];
  }

  // What isn't stored yet, or waits in the database.
  #pending() {
    const client = this.#client;
    const stored = new Set();
    for (const {client_id: id} of client.rows.values()) if (id) stored.add(id);
    const waiting = (client.session?.waiting ?? []).filter(({turn}) => !stored.has(turn));
    for (const {turn} of waiting) stored.add(turn);
    return [
      ...waiting.map((turn) => this.#waitingNode(turn)),
      ...client.outbox.filter(({client_id: id}) => !stored.has(id)).map((entry) => this.#outboxNode(entry)),
    ];
  }

  #outNode(id, text) {
    let node = this.#nodes.get(`out:${id}`);
    if (!node) {
      node = article("user");
      setText(node, text.slice(0, MAX_SHOWN));
      this.#nodes.set(`out:${id}`, node);
    }
    return node;
  }

  #waitingNode({turn, text}) {
    const node = this.#outNode(turn, text ?? "");
    node.className = "cm-row cm-user cm-unsent cm-waiting";
    setNote(node, words.outbox.queued, [button(words.cancel, (event) => this.#cancel(turn, event.target))]);
    return node;
  }

  async #cancel(turn, button) {
    button.disabled = true;
    try {
      await this.#client.cancel(turn);
      this.#focusBox(); // the button goes with the turn
    } catch {
      button.disabled = false;
    }
  }

  #outboxNode(entry) {
    const {client_id: id, text, state, code, message, replaces} = entry;
    const node = this.#outNode(id, text);
    const isFailed = state === "failed";
    node.className = `cm-row cm-user ${isFailed ? "cm-failed" : "cm-unsent"}`;
    const drop = button(words.discard, () => this.#client.discard(id));
    if (isFailed) {
      const isOutdated = code === "conflict" && replaces != null;
      setNote(node, words.refused[isOutdated ? "outdated" : code] ?? message, [
        button(words.again, () => this.#client.retry(id)),
        button(words.edit, () => this.#edit(entry)),
        drop,
      ]);
    } else if (this.#client.state !== "live" && state !== "stored") {
      setNote(node, words.outbox.offline);
    } else if (state === "held") {
      setNote(node, words.outbox[code] ?? words.outbox.held, [drop]);
    } else {
      setNote(node, words.outbox[state] ?? "", state === "new" ? [drop] : []);
    }
    return node;
  }

  #edit({client_id: id, text}) {
    if (!this.#client.discard(id)) return;
    this.#putBack(text);
    this.#parts.text.focus();
  }

  // Changing a message, in its place

  #change({seq, text: before}, node) {
    this.#giveUpChange();
    const form = changing.content.firstElementChild.cloneNode(true);
    const [box, cancel, save] = form.elements;
    box.value = before;
    box.setAttribute("aria-label", words.change);
    cancel.textContent = words.cancel;
    save.textContent = words.send;
    const measure = () => {
      save.disabled = !this.#isGood(box.value);
      fit(box);
    };
    const leave = () => {
      this.#endChange();
      node.querySelector(".cm-change")?.focus();
    };
    const submit = (event) => {
      event.preventDefault();
      if (!this.#isGood(box.value)) return;
      this.#endChange();
      this.#client.edit(seq, box.value);
      this.#isPinned = true;
      this.#focusBox();
    };
    form.addEventListener("submit", submit);
    form.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !event.isComposing) leave();
      else if (event.target === box && isSending(event)) submit(event);
    });
    box.addEventListener("input", measure);
    cancel.addEventListener("click", leave);
    this.#changing = {before, node, form};
    node.classList.add("cm-changing");
    node.querySelector(".cm-text").after(form);
    measure();
    box.focus();
  }

  #endChange() {
    this.#changing?.node.classList.remove("cm-changing");
    this.#changing?.form.remove();
    this.#changing = null;
  }

  // End it, and keep what was written.
  #giveUpChange() {
    if (!this.#changing) return;
    const {before, form} = this.#changing;
    const {value} = form.elements.text;
    this.#endChange();
    if (value !== before) this.#putBack(value);
  }

  #answerAgain(seq) {
    this.#client.regenerate(seq);
    this.#isPinned = true;
    this.#focusBox();
  }

  // Versions

  #versionTools({of, number, count}) {
    const to = (by, label, sign, name) => {
      const made = button(sign, () => this.#choose(of, number + by, name), name);
      made.setAttribute("aria-label", label);
      made.title = label;
      made.disabled = number + by < 1 || number + by > count;
      return made;
    };
    const place = document.createElement("span");
    place.textContent = words.version(number, count);
    return [to(-1, words.previous, "‹", "cm-previous"), place, to(1, words.following, "›", "cm-following")];
  }

  // Show a version of the turn that begins with this message, where that is.
  async #choose(of, number, name) {
    const client = this.#client;
    const {from} = client.versions(of)[number - 1];
    try {
      await client.fetchFrom(from);
    } catch {
      return; // no connection; the buttons are still there
    }
    const top = (seq) => this.#nodes.get(`row:${seq}`)?.getBoundingClientRect().top ?? 0;
    const before = top(this.#chosen.get(of) ?? of);
    this.#chosen.set(of, from);
    this.#isPinned = false;
    this.#drawNow();
    this.#parts.log.scrollTop += top(from) - before;
    this.#onScroll();
    const bar = this.#nodes.get(`row:${from}`)?.querySelector(".cm-tools");
    bar?.scrollIntoView({block: "nearest"}); // not below the notice
    (bar?.querySelector(`.${name}:enabled`) ?? bar?.querySelector(":enabled"))?.focus({preventScroll: true});
  }

  #oldNode() {
    let node = this.#nodes.get("old");
    if (!node) {
      node = document.createElement("p");
      node.className = "cm-old-note";
      node.append(words.old, " ", button(words.newest, () => this.#toNewestVersion()));
      this.#nodes.set("old", node);
    }
    return node;
  }

  #toNewestVersion() {
    this.#chosen.clear();
    this.#drawNow();
    this.#toNewest();
    this.#focusBox();
  }

  #take(key) {
    const node = this.#nodes.get(key);
    this.#nodes.delete(key);
    return node;
  }

  #forgetNodes() {
    for (const [key, node] of this.#nodes) if (!node.isConnected) this.#nodes.delete(key);
  }

  // After a reset another message may have the number and revision of one that is shown.
  #forgetRows() {
    this.#resets += 1;
    this.#unrendered.clear();
    for (const key of this.#nodes.keys()) if (key.startsWith("row:")) this.#nodes.delete(key);
  }

  #drawBanner() {
    const {banner} = this.#parts;
    const {state, ending, session, lost} = this.#client;
    let said = "";
    let action = "";
    if (state === "ended") {
      said = words.ended[ending.code] ?? words.ended.other;
      if (ending.code === "refused" && this.hasAttribute("details")) said += ` ${words.refusedDetails}`;
      action = {4401: words.signIn, 4409: words.here}[ending.code] ?? words.reload;
    } else if (!navigator.onLine && state !== "live") said = words.offline; // a live socket knows better
    else if (state === "waiting") said = words.pauses[ending.code] ?? words.lost;
    else if (state === "connecting") said = session ? words.lost : words.connecting;
    else if (lost !== 0) {
      said = words.messagesLost(lost);
      action = words.dismiss;
    } else if (session?.archived) said = words.archived;
    else if (session?.live === false) said = words.late;
    const [text, act] = banner.children;
    if (text.textContent !== said) text.textContent = said;
    act.textContent = action;
    act.hidden = !action;
    banner.hidden = !said;
    banner.classList.toggle("cm-ended", state === "ended");
    this.dataset.state = state;
  }

  // What the banner's button does: dismiss a notice, take the session back from another tab, or
  // load the page again, which leads to the sign-in where it must.
  #mend() {
    if (this.#client.state === "live") {
      this.#client.lost = 0;
      this.#draw();
    } else if (this.#client.ending?.code === 4409) this.#client.connect();
    else location.reload();
  }

  #announceTitle() {
    const {rows, session, title} = this.#client;
    if (!session) return;
    const first = rows.get(session.first_seq);
    const shown = title || (first?.role === "user" ? firstWords(first.text) : "");
    if (!shown) return;
    this.dispatchEvent(new CustomEvent("chat-memory-title", {bubbles: true, detail: visible(shown)}));
  }

  // Markdown, rendered and cleaned by the server

  async #render() {
    const page = this.getAttribute("page");
    if (this.#isRendering || !this.#unrendered.size || !page || this.#client.state !== "live") return;
    this.#isRendering = true;
    const resets = this.#resets;
    try {
      const newest = Math.max(...this.#unrendered);
      const oldest = Math.max(Math.min(...this.#unrendered), newest - MAX_RENDERED + 1);
      const answer = await fetch(`${page}html/?after=${oldest - 1}&before=${newest + 1}`);
      if (!answer.ok || answer.redirected) return; // again after the next `synced`
      const {messages, upto} = await answer.json();
      if (resets !== this.#resets) return;
      this.#keepPlace(() => messages.forEach((message) => this.#putHtml(message)));
      for (const seq of this.#unrendered) if (seq >= oldest && seq <= upto) this.#unrendered.delete(seq);
      if (upto < oldest) return;
    } catch {
      return; // no connection
    } finally {
      this.#isRendering = false;
    }
    this.#render();
  }

  #putHtml({seq, revision, html}) {
    const node = this.#nodes.get(`row:${seq}`);
    if (!node || node.dataset.revision !== String(revision)) return;
    const parsed = document.createElement("template");
    parsed.innerHTML = html;
    const text = node.querySelector(".cm-text");
    text.replaceChildren(parsed.content);
    text.classList.add("cm-rich");
    node.dataset.html = "";
  }

  // Scrolling

  #onScroll() {
    const {log, newer} = this.#parts;
    this.#isPinned = log.scrollHeight - log.scrollTop - log.clientHeight < NEAR_PIXELS;
    newer.hidden = this.#isPinned;
    if (log.scrollTop < NEAR_PIXELS && this.#client.state === "live") this.#loadOlder();
  }

  #toNewest() {
    const {log, newer} = this.#parts;
    log.scrollTop = log.scrollHeight;
    this.#isPinned = true;
    newer.hidden = true;
  }

  // Load more where replaced messages leave the log half empty.
  #fillUp() {
    const {log} = this.#parts;
    const isShort = log.clientHeight > 0 && log.scrollHeight <= log.clientHeight;
    if (isShort && this.#client.state === "live") this.#loadOlder();
  }

  async #loadOlder() {
    const {older} = this.#parts;
    if (!this.#client.hasOlder || older.disabled) return;
    older.disabled = true;
    older.textContent = words.loading;
    try {
      await this.#client.fetchOlder();
    } catch {
      // The button is still there.
    }
    older.disabled = false;
    older.textContent = words.older;
  }

  // Change the log so that the reader's place in it stays: the newest message, or the one on top.
  #keepPlace(change) {
    const {log, rows} = this.#parts;
    const top = log.getBoundingClientRect().top;
    const seen = this.#isPinned
      ? null
      : [...rows.children].find((node) => node.getBoundingClientRect().bottom > top);
    const before = seen?.getBoundingClientRect().top;
    change();
    if (this.#isPinned) this.#toNewest();
    else if (seen?.isConnected) log.scrollTop += seen.getBoundingClientRect().top - before;
  }
}

function isAsking(row) {
  return row?.role === "assistant" && row.asks != null;
}

// The short answers that a question offers, as `choices`.
function choicesOf({value}) {
  const choices = Array.isArray(value?.choices) ? value.choices : [];
  const isShort = (one) => typeof one === "string" && !NOTHING.test(one) && one.length <= MAX_CHOICE;
  return choices.length <= MAX_CHOICES && choices.every(isShort) ? choices : [];
}

function activityText({kind, name, state}) {
  const said = kind === "tool" && name ? words.uses(visible(name)) : words.thinking;
  return !state || state === "started" ? said : `${said} ${visible(state)}`;
}

function firstWords(text, most = 60) {
  const line = text.split(/\s+/).filter(Boolean).join(" ");
  if (line.length <= most) return line;
  const cut = line.slice(0, most + 1).lastIndexOf(" ");
  return `${line.slice(0, cut > 0 ? cut : most)}…`;
}

// Let a box be as high as its text, where the browser doesn't see to it.
function fit(box) {
  if (CSS.supports("field-sizing", "content")) return;
  box.style.height = "auto";
  box.style.height = `${box.scrollHeight}px`;
}

// Whether a key means "send": on a touch screen Enter is the only way to a new line.
function isSending({key, shiftKey, isComposing}) {
  return key === "Enter" && !shiftKey && !isComposing && !isTouch();
}

function isTouch() {
  return matchMedia("(pointer: coarse)").matches;
}

customElements.define("chat-memory", ChatMemory);

// The page around the element shows the session's title where it says so.
document.addEventListener("chat-memory-title", ({detail: title}) => {
  for (const node of document.querySelectorAll("[data-cm-title]")) {
    if (node.textContent !== title) node.textContent = title;
  }
  if (document.title !== title) document.title = title;
});
