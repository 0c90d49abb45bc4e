// A session of chatmemory over a websocket: the protocol `chatmemory.v1` and what it says, as data.
// It shows nothing. It reconnects by itself, and what was handed to `send` is kept in the tab's
// storage until the server says that it is in the database.
//
//   const client = new ChatMemoryClient("/ws/chat/my-session/", {create: true});
//   client.addEventListener("change", () => show(client.rows, client.streams, client.outbox));
//   client.connect();
//   client.send("Hello");
//
// Events: `state` (the connection), `change` (rows, session, outbox, activity), `text` (a streamed
// text; detail: {key, piece}, piece null where the whole text is new), `reset`, `synced`.

const VERSION = 1;
const SILENCE_MS = 45_000;
const FIRST_RETRY_MS = 500;
const LONGEST_RETRY_MS = 10_000;
const LONGEST_HOLD_MS = 30_000;
const HOPELESS = new Set([4401, 4403, 4404, 4409, 4426]);
const RATE_LIMITED = 4429;
const MAX_REFUSALS = 5;
const ENDED = new Set(["ended", "failed"]); // states of what the run was at

export class ChatMemoryClient extends EventTarget {
  // url: of the websocket; a path is one of this page's host.
  // create: make the session if there is none; its key must be a version-4 UUID.
  // ticket: for pages that Django's cookie does not reach: gives a new ticket, or a promise of one,
  // for each connection; throws {code: 4401} if one must sign in again.
  // storage: where unacknowledged messages are kept, under `storageKey`; null for nowhere.
  constructor(url, {create = false, ticket = null, storage = defaultStorage(), storageKey = `chatmemory:${url}`} = {}) {
    super();
    const address = new URL(url, globalThis.location?.href);
    address.protocol = address.protocol.replace(/^http/, "ws");
    this.url = address.href;
    this.create = create;

    this.state = "idle"; // idle, connecting, live, waiting (for the next try), ended
    // {code, reason} of the last socket, where the state is waiting or ended. The code is `refused`
    // where the server answers HTTP and has refused each websocket.
    this.ending = null;
    this.title = "";
    this.session = null; // the newest `session` frame
    this.limits = {};
    this.lost = 0; // how many messages the server has lost, null for some; a page may set it to 0
    this.rows = new Map(); // seq → `message` frame
    this.streams = new Map(); // "turn:step" → {key, turn, step, text}
    this.activity = []; // what the run is at besides its text: {kind: thinking | tool, name, state}
    this.outbox = []; // see `send`
    this.stopping = null; // the turn whose end was asked for

    this.#ticket = ticket;
    this.#storage = storage;
    this.#storageKey = storageKey;
    this.#restore();
  }

  #ticket;
  #storage;
  #storageKey;
  #opening = null; // the try that waits for its ticket
  #socket = null;
  #cursor = null;
  #isSynced = false;
  #bye = null;
  #tries = 0;
  #hasOpened = false;
  #refusals = 0; // handshakes that failed before the first socket opened
  #retryTimer = 0;
  #notBefore = 0; // when the server lets us try again
  #silenceTimer = 0;
  #holdTimer = 0;
  #heldFor = null; // the code for which nothing is sent for a while
  #heldLoad = 0; // how many turns ran and waited then
  #holds = 0;
  #lastId = 0;
  #requests = new Map(); // id → {resolve, reject}
  #sending = null; // the entry of the outbox that waits for its answer
  #steps = new Set(); // "turn:step" of the rows
  #fetching = null;
  #resets = 0;

  // Open the socket; at once if the next try is still to come, unless the server said when.
  connect() {
    if (this.#opening || this.#socket) return;
    if (this.state === "waiting" && Date.now() < this.#notBefore) return;
    clearTimeout(this.#retryTimer);
    this.ending = null;
    this.#bye = null;
    this.#isSynced = false;
    if (this.#ticket) this.#openByTicket();
    else this.#open();
    this.#setState("connecting");
  }

  // Close the socket and stay away. A run goes on without us.
  close() {
    clearTimeout(this.#retryTimer);
    this.#forget();
    this.#setState("idle");
  }

  // Keep a message and send it as soon as possible; return its entry in the outbox: {client_id,
  // text, state: new | sent | held | failed | stored, code, message}. `ifBusy` says what becomes of
  // it while a turn runs: queue, reject or interrupt; by default what the server is set to.
  send(text, {ifBusy} = {}) {
    return this.#post({text, ...(ifBusy && {if_busy: ifBusy})});
  }

  // Say something else in place of a user's message. It replaces all from there on, which stays as
  // an older version. Fails as `conflict` if somebody said more meanwhile, as `busy` in a turn.
  edit(seq, text) {
    return this.#post({text, ...this.#replacing(seq)});
  }

  // Have the message answered once more that this one is, or answers.
  regenerate(seq) {
    const begun = [...this.rows.values()].filter(beginsTurn).map(seqOf);
    const asked = Math.max(...begun.filter((one) => one <= seq));
    const {text, content} = this.rows.get(asked) ?? {};
    return this.#post({text, ...(content && {content}), ...this.#replacing(asked)});
  }

  // Send a message that was refused once more; as a new one only if the old one can't be stored any
  // more, for otherwise it may have been.
  retry(clientId) {
    const entry = this.#entry(clientId);
    if (entry?.state !== "failed") return;
    if (entry.code === "history_cleared" || entry.code === "conflict") {
      Object.assign(entry, {client_id: randomId(), epoch: this.session?.epoch});
      if (entry.code === "history_cleared") delete entry.replaces; // it is gone
      if (entry.replaces == null) delete entry.expect_seq;
      else entry.expect_seq = this.#newestSaid();
    }
    entry.state = "new";
    delete entry.code;
    delete entry.message;
    this.#keep();
    this.#changed();
    this.#pump();
  }

  // Drop a message that is not on its way; false if it is too late.
  discard(clientId) {
    const entry = this.#entry(clientId);
    if (!entry || entry === this.#sending || entry.state === "stored") return false;
    if (entry.state === "sent" && !this.#isSynced) return false;
    this.#drop(entry);
    return true;
  }

  // End a turn, by default the running one; what was said so far is kept. Asked again after a lost
  // connection, as long as the turn runs.
  async stop(turn = this.session?.running?.turn) {
    if (!turn) return;
    this.stopping = turn;
    this.#changed();
    try {
      await this.#request({type: "stop", turn});
    } catch ({code}) {
      if (code === "disconnected") return;
      this.stopping = null;
      this.#changed();
    }
  }

  // Take a waiting turn back; resolves to its status, which is not `cancelled` if it came too late.
  // Rejects with the error's frame, or {code: "disconnected"}.
  async cancel(turn) {
    return (await this.#request({type: "stop", turn})).status;
  }

  get oldest() {
    return Math.min(...this.rows.keys());
  }

  get hasOlder() {
    return this.session !== null && this.rows.size > 0 && this.oldest > this.session.first_seq;
  }

  // Load the messages before the oldest one; resolves when they are in `rows`.
  fetchOlder(limit = 50) {
    if (!this.hasOlder) return Promise.resolve();
    const resets = this.#resets;
    this.#fetching ??= this.#request({type: "fetch", before_seq: this.oldest, limit})
      .then(({messages}) => {
        // After a reset they may not join to what is here now.
        if (!messages.length || resets !== this.#resets) return;
        for (const message of messages) this.#upsert(message);
        this.#changed();
      })
      .finally(() => (this.#fetching = null));
    return this.#fetching;
  }

  // Load all messages from this number on.
  async fetchFrom(seq) {
    while (this.hasOlder && this.oldest > seq) await this.fetchOlder(100);
  }

  // Versions: what was replaced by an edit or by a second answer is kept, in ranges of numbers.

  // The versions of a turn that begins with this message of a user, the oldest first and this one
  // last: [{from, to}]. Their rows may have to be loaded, with `fetchFrom(from)`.
  versions(seq, replaced = this.#replaced()) {
    const versions = [{from: seq, to: Infinity}];
    for (;;) {
      const before = replaced.find(([, to]) => to === versions[0].from - 1);
      if (!before || before[0] < this.session?.first_seq) return versions;
      versions.unshift({from: before[0], to: before[1]});
    }
  }

  // The rows to show, in order: [{row, version, isOld}], where `version` is null or {of, number,
  // count}. `chosen` names older versions to show instead: the user's message → where one begins.
  path(chosen = new Map()) {
    const seqs = [...this.rows.keys()].sort((a, b) => a - b);
    return this.#walk(seqs, this.#replaced(), {from: 0, to: Infinity}, chosen);
  }

  #walk(seqs, replaced, {from: low, to: high}, chosen) {
    const hidden = replaced.filter(([from, to]) => low <= from && to < high);
    const path = [];
    for (const seq of seqs) {
      if (seq < low || seq > high || hidden.some(([from, to]) => from <= seq && seq <= to)) continue;
      const row = this.rows.get(seq);
      const versions = beginsTurn(row) && seq > low ? this.versions(seq, replaced) : [];
      const count = versions.length;
      const at = versions.findIndex(({from}) => from === chosen.get(seq));
      if (0 <= at && at < count - 1 && this.rows.has(versions[at].from)) {
        const older = this.#walk(seqs, replaced, versions[at], chosen);
        older[0].version = {of: seq, number: at + 1, count};
        return [...path, ...older.map((item) => ({...item, isOld: true}))];
      }
      path.push({row, version: count > 1 ? {of: seq, number: count, count} : null, isOld: false});
    }
    return path;
  }

  // Ranges that are replaced, by messages still on their way too.
  #replaced() {
    const pending = this.outbox.filter(({replaces, state}) => replaces != null && state !== "failed");
    const begun = new Map([...this.rows.values()].map((row) => [row.client_id, row.seq - 1]));
    const coming = ({replaces, client_id: id}) => [replaces, begun.get(id) ?? Number.MAX_SAFE_INTEGER];
    return [...(this.session?.superseded ?? []), ...pending.map(coming)];
  }

  #replacing(seq) {
    if (!beginsTurn(this.rows.get(seq))) throw new RangeError(`No turn begins at message ${seq}.`);
    return {replaces: seq, expect_seq: this.#newestSaid()};
  }

  #newestSaid() {
    return Math.max(...[...this.rows.values()].filter(isUsers).map(seqOf));
  }

  // The connection

  #open(protocols = []) {
    const socket = new WebSocket(this.url, protocols);
    this.#socket = socket;
    const mine = (handler) => (event) => this.#socket === socket && handler(event);
    socket.onopen = mine(() => {
      this.#hasOpened = true;
      this.#hello();
    });
    socket.onmessage = mine((event) => this.#receive(event.data));
    socket.onclose = mine((event) => {
      this.#lost(event.code, event.reason);
      if (!this.#hasOpened && ++this.#refusals >= MAX_REFUSALS) this.#checkServer();
    });
    this.#listen();
  }

  // Stop trying if the server is up: then it, or a proxy before it, takes no websockets here.
  async #checkServer() {
    const address = new URL(this.url);
    address.protocol = address.protocol.replace(/^ws/, "http");
    try {
      const {status} = await fetch(address, {method: "HEAD", cache: "no-store"});
      if (status >= 500) return; // a proxy whose server is away
    } catch {
      return; // no network, or another origin
    }
    if (this.#hasOpened || this.state === "idle" || this.state === "ended") return;
    clearTimeout(this.#retryTimer);
    this.#forget();
    this.ending = {code: "refused", reason: "handshake"};
    this.#setState("ended");
  }

  async #openByTicket() {
    const opening = {};
    this.#opening = opening;
    this.#listen();
    try {
      const ticket = await Promise.resolve().then(this.#ticket); // even if it throws at once
      if (this.#opening !== opening) return; // closed meanwhile, or too late
      this.#opening = null;
      this.#open(["chatmemory.v1", `ticket.${ticket}`]);
    } catch (error) {
      if (this.#opening === opening) this.#lost(error?.code ?? 1006, "no ticket");
    }
  }

  #hello() {
    if (this.#cursor === null) this.#clear(); // the newest rows come, and may not join to these
    this.#put({
      type: "hello",
      v: VERSION,
      ...(this.#cursor !== null && {cursor: this.#cursor}),
      ...(this.create && {create: true}),
    });
  }

  #put(frame) {
    if (this.#socket?.readyState === WebSocket.OPEN) this.#socket.send(JSON.stringify(frame));
  }

  #listen() {
    clearTimeout(this.#silenceTimer);
    this.#silenceTimer = setTimeout(() => this.#lost(1006, "silence"), SILENCE_MS);
  }

  // Let go of the socket without waiting for it: closing takes a minute on a dead line.
  #forget() {
    clearTimeout(this.#silenceTimer);
    const socket = this.#socket;
    this.#opening = null;
    this.#socket = null;
    this.#isSynced = false;
    socket?.close();
    const requests = [...this.#requests.values()];
    this.#requests.clear();
    for (const {reject} of requests) reject({code: "disconnected", retry: true});
    this.#sending = null;
    this.activity = [];
    this.#release();
  }

  #lost(closeCode, closeReason) {
    const {code = closeCode, reason = closeReason, reconnect = true, after_ms: after} = this.#bye ?? {};
    const tooLarge = code === 1009 ? this.#sending : null;
    this.#forget();
    if (tooLarge) this.#fail(tooLarge, {code: "too_large", message: "The message is too large."});
    this.ending = {code, reason};
    if (!reconnect || HOPELESS.has(code)) {
      this.#setState("ended");
      return;
    }
    const backoff = Math.min(LONGEST_RETRY_MS, FIRST_RETRY_MS * 2 ** this.#tries++);
    const least = after ?? (code === RATE_LIMITED ? LONGEST_RETRY_MS : 0);
    this.#notBefore = Date.now() + least;
    this.#retryTimer = setTimeout(() => {
      this.#notBefore = 0; // whatever became of the clock
      this.connect();
    }, least + Math.random() * backoff);
    this.#setState("waiting");
  }

  #setState(state) {
    this.state = state;
    this.dispatchEvent(new Event("state"));
    this.#changed();
  }

  #changed() {
    this.dispatchEvent(new Event("change"));
  }

  #clear() {
    this.#resets += 1;
    this.activity = [];
    this.rows.clear();
    this.streams.clear();
    this.#steps.clear();
  }

  // Frames

  #receive(data) {
    this.#listen();
    const frame = JSON.parse(data);
    switch (frame.type) {
      case "welcome":
        this.create = false; // were it purged now, it must not come back
        this.title = frame.session?.title ?? "";
        this.limits = frame.limits ?? {};
        break;
      case "session":
        this.#onSession(frame);
        break;
      case "message":
        // A changed one may be older than those that are here; `fetchOlder` brings it.
        if (this.rows.size && frame.seq < this.oldest) return;
        this.#upsert(frame);
        break;
      case "reset": {
        const {reason, lost = 0} = frame;
        this.#clear();
        this.session = null;
        this.#cursor = null;
        if (lost !== 0) this.lost = lost;
        this.dispatchEvent(new CustomEvent("reset", {detail: {reason, lost}}));
        break;
      }
      case "synced":
        this.#onSynced(frame);
        return;
      case "snapshot":
      case "delta":
        this.#onText(frame);
        return;
      case "ok":
      case "error":
        this.#onAnswer(frame);
        return;
      case "ping":
        this.#put({type: "pong", n: frame.n});
        return;
      case "bye":
        this.#bye = frame;
        this.#lost(frame.code, frame.reason); // not every server's close comes through
        return;
      default:
        return;
    }
    this.#changed();
  }

  #onSession(frame) {
    const known = this.session;
    if (known && known.epoch === frame.epoch && known.revision > frame.revision) return;
    this.session = frame;
    this.title = frame.title ?? "";
    for (const seq of this.rows.keys()) if (seq < frame.first_seq) this.rows.delete(seq);
    const turn = frame.running?.turn;
    for (const [key, stream] of this.streams) if (stream.turn !== turn) this.streams.delete(key);
    if (known?.running?.turn !== turn) this.activity = [];
    if (this.stopping && this.stopping !== turn) this.stopping = null;
    if (this.#heldFor === "busy" || this.#heldFor === "queue_full") this.#onRoom(load(frame));
  }

  // Go on once a turn has ended.
  #onRoom(now) {
    const isLess = now < this.#heldLoad;
    this.#heldLoad = now;
    if (!isLess) return;
    this.#release();
    this.#pump();
  }

  // All that was news is here, so a message that is stored is among the rows, or waits.
  #onSynced({cursor}) {
    this.#cursor = cursor;
    this.#tries = 0;
    const count = this.outbox.length;
    this.outbox = this.outbox.filter(({state}) => state !== "stored");
    if (this.#isSynced) {
      if (this.outbox.length < count) this.#changed();
      return;
    }
    this.#isSynced = true;
    this.#setState("live");
    this.dispatchEvent(new Event("synced"));
    if (this.stopping) this.stop(this.stopping);
    this.#pump();
  }

  #upsert(frame) {
    const known = this.rows.get(frame.seq);
    if (known && known.revision > frame.revision) return;
    if (this.session && frame.seq < this.session.first_seq) return;
    this.rows.set(frame.seq, frame);
    if (frame.turn != null && frame.step != null) {
      const key = streamKey(frame);
      this.#steps.add(key);
      this.streams.delete(key);
    }
  }

  #onText(frame) {
    const key = streamKey(frame);
    if (frame.type === "snapshot") this.activity = [];
    if (frame.event) this.#onEvent(frame.event);
    if (!frame.text || this.#steps.has(key)) return;
    let stream = this.streams.get(key);
    const isNew = !stream || frame.type === "snapshot";
    if (!stream) {
      stream = {key, turn: frame.turn, step: frame.step, text: ""};
      this.streams.set(key, stream);
    }
    stream.text = isNew ? frame.text : stream.text + frame.text;
    const isThinking = this.activity.some(({kind}) => kind === "thinking");
    if (isThinking) this.activity = this.activity.filter(({kind}) => kind !== "thinking");
    if (isNew || isThinking) this.#changed();
    this.dispatchEvent(new CustomEvent("text", {detail: {key, piece: isNew ? null : frame.text}}));
  }

  // Of two calls of one tool the first that ends takes the line away.
  #onEvent(event) {
    const others = this.activity.filter(({kind, name}) => kind !== event.kind || name !== event.name);
    this.activity = ENDED.has(event.state) ? others : [...others, event];
    this.#changed();
  }

  #onAnswer(frame) {
    const request = this.#requests.get(frame.id);
    if (!request) return;
    this.#requests.delete(frame.id);
    if (frame.type === "ok") request.resolve(frame);
    else request.reject(frame);
  }

  // Send a frame that gets one `ok` or `error`. Rejects with the error's frame, or {code:
  // "disconnected"}.
  #request(frame) {
    return new Promise((resolve, reject) => {
      if (!this.#isSynced) {
        reject({code: "disconnected", retry: true});
        return;
      }
      const id = ++this.#lastId;
      this.#requests.set(id, {resolve, reject});
      this.#put({...frame, id});
    });
  }

  // The outbox: one message is on its way at a time, so they arrive in order.

  #post(said) {
    const entry = {client_id: randomId(), ...said, epoch: this.session?.epoch, state: "new"};
    this.outbox.push(entry);
    this.#keep();
    this.#changed();
    this.#pump();
    return entry;
  }

  #pump() {
    const entry = this.outbox.find(({state}) => state !== "failed" && state !== "stored");
    if (!entry || this.#sending || !this.#isSynced || this.#heldFor) return;
    const {state, code, message, text, ...fields} = entry;
    const frame = {type: "send", ...fields, ...(!fields.content && {text})};
    const most = this.limits.max_frame_bytes;
    if (most && new TextEncoder().encode(JSON.stringify(frame)).length + 40 > most) {
      this.#fail(entry, {code: "too_large", message: "The message is too large."});
      this.#pump();
      return;
    }
    this.#sending = entry;
    entry.state = "sent";
    this.#changed();
    this.#request(frame).then(
      ({duplicate}) => {
        this.#sending = null;
        this.#holds = 0;
        if (duplicate) this.#drop(entry);
        else this.#stored(entry);
        this.#pump();
      },
      (error) => {
        if (error.code === "disconnected") return; // again after the next `synced`
        this.#sending = null;
        const isBusy = error.code === "busy" && (entry.if_busy === "reject" || entry.replaces != null);
        if (error.retry && !isBusy) this.#hold(entry, error);
        else this.#fail(entry, error);
        this.#pump();
      },
    );
  }

  // Shown until the row or the waiting turn is here.
  #stored(entry) {
    entry.state = "stored";
    this.#keep();
    this.#changed();
  }

  #hold(entry, error) {
    Object.assign(entry, {state: "held", code: error.code, message: error.message});
    this.#heldFor = error.code;
    this.#heldLoad = load(this.session);
    const backoff = Math.min(LONGEST_HOLD_MS, 1000 * 2 ** this.#holds++);
    const wait = error.retry_after_ms ?? backoff;
    clearTimeout(this.#holdTimer);
    this.#holdTimer = setTimeout(() => {
      this.#release();
      this.#pump();
    }, wait + Math.random() * 250);
    this.#changed();
  }

  #release() {
    clearTimeout(this.#holdTimer);
    this.#heldFor = null;
  }

  #fail(entry, {code, message}) {
    Object.assign(entry, {state: "failed", code, message});
    this.#keep();
    this.#changed();
  }

  #drop(entry) {
    this.outbox = this.outbox.filter((other) => other !== entry);
    this.#keep();
    this.#changed();
  }

  #entry(clientId) {
    return this.outbox.find(({client_id}) => client_id === clientId);
  }

  #keep() {
    const unsent = this.outbox.filter(({state}) => state !== "stored");
    const kept = unsent.map(({state, code, message, ...entry}) =>
      state === "failed" ? {...entry, state, code, message} : entry,
    );
    try {
      if (kept.length) this.#storage?.setItem(this.#storageKey, JSON.stringify(kept));
      else this.#storage?.removeItem(this.#storageKey);
    } catch {
      // No room, or forbidden: the message is still here as long as the page is.
    }
  }

  #restore() {
    try {
      const kept = JSON.parse(this.#storage?.getItem(this.#storageKey) ?? "[]");
      this.outbox = kept.map((entry) => ({state: "new", ...entry}));
    } catch {
      this.outbox = [];
    }
  }
}

export function streamKey({turn, step}) {
  return `${turn}:${step}`;
}

function isUsers(row) {
  return row?.role === "user";
}

// A graph may put messages of a user into a turn, too.
export function beginsTurn(row) {
  return isUsers(row) && (row.turn == null || row.turn === row.client_id);
}

function seqOf({seq}) {
  return seq;
}

// How many turns run and wait.
function load(session) {
  return (session?.running ? 1 : 0) + (session?.waiting?.length ?? 0);
}

function defaultStorage() {
  try {
    return globalThis.sessionStorage ?? null;
  } catch {
    return null; // forbidden by the browser's settings
  }
}

// Not randomUUID, which only pages over HTTPS have.
function randomId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) =>
    byte.toString(16).padStart(2, "0"),
  ).join("");
}
