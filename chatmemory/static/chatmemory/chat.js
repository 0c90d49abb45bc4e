// <chat-memory url="/ws/chat/KEY/" session="KEY">: a session to read and to write in.
//
// Optional: `page`, the address of the session's page (Markdown and long messages come from there;
// without it replies stay plain text); `person`, who writes (unsent messages are kept apart);
// `create`, to make a session that is new. Rows that stand in the element are taken over.
//
// What people and models say goes into the page as text. Only what the server rendered and cleaned
// goes in as HTML.

import {ChatMemoryClient, streamKey} from "./chatmemory-client.js";

export const words = {
  who: {user: "You", assistant: "Assistant", tool: "Tool", system: "Instructions"},
  log: "Conversation",
  label: "Message",
  placeholder: "Write a message",
  send: "Send",
  stop: "Stop",
  stopping: "Stopping…",
  thinking: "Thinking…",
  tool: "Result of a tool",
  usesTool: (name) => `Using ${name}…`,
  older: "Load earlier messages",
  loading: "Loading…",
  newer: "Newest messages",
  empty: "What would you like to talk about?",
  tooLong: (by) => `Too long by ${by.toLocaleString()} ${by === 1 ? "character" : "characters"}`,
  length: (length, most) => `${length.toLocaleString()} of ${most.toLocaleString()} characters`,
  whole: "Show the whole message",
  redacted: "This message was removed by an operator.",
  quarantined: "This message can't be read.",
  interrupted: "Stopped before the end.",
  failed: "The reply failed.",
  errors: {
    model_error: "The model failed.",
    model_unavailable: "The model can't be reached.",
    model_timeout: "The model took too long.",
    context_too_long: "The conversation is too long for the model.",
    blocked: "The model refused to answer.",
  },
  superseded: "Replaced by a later version.",
  outbox: {
    new: "Not sent yet.",
    sent: "Sending…",
    offline: "Not sent yet; it goes out as soon as the connection is back.",
    held: "Waits until it can be sent.",
    busy: "Waits for the reply before it.",
    queued: "Waits for its turn.",
  },
  refused: {
    too_large: "This message is too large.",
    history_cleared: "The history was cleared before this was sent.",
    archived: "This chat is archived and takes no more messages.",
    bad_text: "This message has characters that can't be kept.",
    empty: "There is nothing in this message.",
  },
  again: "Send again",
  edit: "Edit",
  discard: "Discard",
  cancel: "Cancel",
  connecting: "Connecting…",
  offline: "You are offline. What you write is kept and sent later.",
  lost: "The connection is lost; trying again. What you write is kept and sent later.",
  archived: "This chat is archived: it can be read, but takes no more messages.",
  late: "What happens elsewhere may be shown a few seconds late.",
  ended: {
    4401: "You are signed out.",
    4403: "You may not chat here.",
    4404: "This chat was removed.",
    4409: "This chat is open in too many places.",
    4426: "This page is out of date.",
    other: "The connection was closed.",
  },
  signIn: "Sign in",
  reload: "Reload",
  here: "Use it here",
};

const MAX_SHOWN = 30_000;
const MAX_RENDERED = 100; // rows asked for at a time
const NEAR_PIXELS = 80;
const HIDDEN = /([\u202a-\u202e\u2066-\u2069\u{e0000}-\u{e007f}])\1*/gu;
const MARKUP = /[*_`#<>|~[\]\\&\n]|^\s*(?:[-+=]|\d+[.)])/;
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

export class ChatMemory extends HTMLElement {
  #client;
  #nodes = new Map(); // "row:SEQ", "text:TURN:STEP", "out:CLIENT_ID" → article
  #unrendered = new Set(); // seqs of replies whose Markdown is still to come
  #isRendering = false;
  #isDrawn = true;
  #isPinned = true; // the newest message is in view, and stays there
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
      // On a touch screen Enter is the only way to a new line.
      if (event.key !== "Enter" || event.shiftKey || event.isComposing || isTouch()) return;
      event.preventDefault();
      this.#send();
    });
    stop.addEventListener("click", () => {
      this.#client.stop();
      if (!isTouch()) text.focus(); // the button goes with the run
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
    this.#isPinned = true;
    this.#measure();
    text.focus();
  }

  #isSendable() {
    const {value} = this.#parts.text;
    return !NOTHING.test(value) && this.#tooLongBy() <= 0 && !this.#client.session?.archived;
  }

  // Characters are counted as the server does, not in UTF-16 units.
  #tooLongBy() {
    const most = this.#client.limits.max_message_chars ?? Infinity;
    const {value} = this.#parts.text;
    return value.length <= most ? value.length - most : [...value].length - most;
  }

  #measure() {
    const {text, send, hint} = this.#parts;
    const most = this.#client.limits.max_message_chars ?? Infinity;
    const by = this.#tooLongBy();
    hint.classList.toggle("cm-over", by > 0);
    let said = "";
    if (by > 0) said = words.tooLong(by);
    else if (-by < most / 10) said = words.length(most + by, most);
    if (hint.textContent !== said) hint.textContent = said;
    text.setAttribute("aria-invalid", by > 0);
    send.disabled = !this.#isSendable();
    if (!CSS.supports("field-sizing", "content")) {
      text.style.height = "auto";
      text.style.height = `${text.scrollHeight}px`;
    }
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
    const isGone = client.state === "ended" && client.ending?.code === 4404;
    const isKnown = isGone || (client.session !== null && client.state === "live");
    if (isKnown) {
      const seqs = [...client.rows.keys()].sort((a, b) => a - b);
      const said = seqs.map((seq) => this.#rowNode(client.rows.get(seq)));
      const streamed = [...client.streams.values()].map((stream) => this.#streamNode(stream));
      arrange(rows, [...said, ...streamed, ...this.#thinking()]);
      older.hidden = !client.hasOlder;
    }
    arrange(tail, this.#pending());
    this.#forgetNodes();
    empty.hidden = isGone || !isKnown || rows.childElementCount + tail.childElementCount > 0;
    this.#drawBanner();
    const running = client.session?.running?.turn;
    stop.hidden = !running;
    stop.disabled = !running || client.stopping === running || client.state !== "live";
    stop.title = client.stopping === running ? words.stopping : words.stop;
    stop.setAttribute("aria-label", stop.title);
    text.disabled = Boolean(client.session?.archived);
    this.#measure();
    this.#announceTitle();
    this.#render();
  }

  #rowNode(row) {
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
    node.classList.toggle("cm-superseded", isSuperseded(row.seq, this.#client.session));
    return node;
  }

  #fill(node, row) {
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
    node.toggleAttribute("data-empty", !stream.text);
    setNote(node, stream.text ? "" : eventText(stream.event));
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
      if (stream.text) {
        node.removeAttribute("data-empty");
        setNote(node, "");
      }
    });
  }

  #thinking() {
    const client = this.#client;
    const turn = client.session?.running?.turn;
    if (!turn || [...client.streams.values()].some((stream) => stream.turn === turn)) return [];
    let node = this.#nodes.get("thinking");
    if (!node) {
      node = article("assistant");
      node.classList.add("cm-thinking");
      node.toggleAttribute("data-empty", true);
      setNote(node, words.thinking);
      this.#nodes.set("thinking", node);
    }
    return [node];
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
    node.className = "cm-row cm-user cm-unsent";
    setNote(node, words.outbox.queued, [button(words.cancel, () => this.#client.stop(turn))]);
    return node;
  }

  #outboxNode(entry) {
    const {client_id: id, text, state, code, message} = entry;
    const node = this.#outNode(id, text);
    const isFailed = state === "failed";
    node.className = `cm-row cm-user ${isFailed ? "cm-failed" : "cm-unsent"}`;
    const drop = button(words.discard, () => this.#client.discard(id));
    if (isFailed) {
      setNote(node, words.refused[code] ?? message, [
        button(words.again, () => this.#client.retry(id)),
        button(words.edit, () => this.#edit(entry)),
        drop,
      ]);
    } else if (this.#client.state !== "live") {
      setNote(node, words.outbox.offline);
    } else if (state === "held") {
      setNote(node, words.outbox[code] ?? words.outbox.held, [drop]);
    } else {
      setNote(node, words.outbox[state], state === "new" ? [drop] : []);
    }
    return node;
  }

  #edit({client_id: id, text}) {
    const box = this.#parts.text;
    if (!this.#client.discard(id)) return;
    box.value = box.value ? `${text}\n${box.value}` : text;
    box.focus();
    this.#measure();
  }

  #take(key) {
    const node = this.#nodes.get(key);
    this.#nodes.delete(key);
    return node;
  }

  #forgetNodes() {
    for (const [key, node] of this.#nodes) if (!node.isConnected) this.#nodes.delete(key);
  }

  #drawBanner() {
    const {banner} = this.#parts;
    const {state, ending, session} = this.#client;
    let said = "";
    let action = "";
    if (state === "ended") {
      said = words.ended[ending.code] ?? words.ended.other;
      action = {4401: words.signIn, 4409: words.here}[ending.code] ?? words.reload;
    } else if (!navigator.onLine && state !== "live") said = words.offline; // a live socket knows better
    else if (state === "waiting" || (state === "connecting" && session)) said = words.lost;
    else if (state === "connecting") said = words.connecting;
    else if (session?.archived) said = words.archived;
    else if (session?.live === false) said = words.late;
    const [text, act] = banner.children;
    if (text.textContent !== said) text.textContent = said;
    act.textContent = action;
    act.hidden = !action;
    banner.hidden = !said;
    banner.classList.toggle("cm-ended", state === "ended");
    this.dataset.state = state;
  }

  // What the banner's button does: take the session back from another tab, or load the page again,
  // which leads to the sign-in where it must.
  #mend() {
    if (this.#client.ending?.code === 4409) this.#client.connect();
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
    try {
      const newest = Math.max(...this.#unrendered);
      const oldest = Math.max(Math.min(...this.#unrendered), newest - MAX_RENDERED + 1);
      const answer = await fetch(`${page}html/?after=${oldest - 1}&before=${newest + 1}`);
      if (!answer.ok || answer.redirected) return; // again after the next `synced`
      const {messages, upto} = await answer.json();
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

function article(role) {
  const node = document.createElement("article");
  node.className = `cm-row cm-${role}`;
  const who = document.createElement("h2");
  who.className = "cm-who";
  who.textContent = words.who[role] ?? role;
  const text = document.createElement("div");
  text.className = "cm-text";
  text.dir = "auto";
  const note = document.createElement("p");
  note.className = "cm-note";
  if (role !== "tool") {
    node.append(who, text, note);
    return node;
  }
  const details = document.createElement("details");
  const summary = document.createElement("summary");
  summary.textContent = words.tool;
  details.append(summary, text);
  node.append(who, details, note);
  return node;
}

function setText(node, text) {
  const box = node.querySelector(".cm-text");
  box.classList.remove("cm-rich");
  box.textContent = visible(text);
}

function appendText(node, piece) {
  const box = node.querySelector(".cm-text");
  if (box.lastChild instanceof Text) box.lastChild.appendData(visible(piece));
  else box.textContent = visible(piece);
}

function setNote(node, text, parts = []) {
  const note = node.querySelector(".cm-note");
  const now = [text, ...parts.map((part) => part.textContent)].join("\n");
  if (note.dataset.said === now) return; // so that a button keeps the focus
  note.dataset.said = now;
  note.replaceChildren(text, ...parts.flatMap((part) => [" ", part]));
}

function link(href, text) {
  const node = document.createElement("a");
  node.href = href;
  node.textContent = text;
  return node;
}

function button(text, act) {
  const node = document.createElement("button");
  node.type = "button";
  node.className = "cm-link";
  node.textContent = text;
  node.addEventListener("click", act);
  return node;
}

// Let these nodes be the children, in this order; one that is in its place isn't touched.
function arrange(parent, wanted) {
  let at = parent.firstElementChild;
  for (const node of wanted) {
    if (node === at) at = at.nextElementSibling;
    else parent.insertBefore(node, at);
  }
  while (at) {
    const next = at.nextElementSibling;
    at.remove();
    at = next;
  }
}

function isSuperseded(seq, session) {
  return (session?.superseded ?? []).some(([from, to]) => from <= seq && seq <= to);
}

function eventText(event) {
  return event?.kind === "tool" && event.name ? words.usesTool(visible(event.name)) : words.thinking;
}

// Marks in place of characters that turn the direction of text, or that nobody sees.
function visible(text) {
  return text.replace(HIDDEN, (run, one) => {
    const times = [...run].length;
    const code = one.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
    return `⟦U+${code}${times > 1 ? ` ×${times}` : ""}⟧`;
  });
}

function firstWords(text, most = 60) {
  const line = text.split(/\s+/).filter(Boolean).join(" ");
  if (line.length <= most) return line;
  const cut = line.slice(0, most + 1).lastIndexOf(" ");
  return `${line.slice(0, cut > 0 ? cut : most)}…`;
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
