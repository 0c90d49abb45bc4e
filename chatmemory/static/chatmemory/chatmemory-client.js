// A session of chatmemory over a websocket: the protocol `chatmemory.v1` and what it says, as data.
// It shows nothing. It reconnects by itself, and what was handed to `send` is kept in the tab's
// storage until the server says that it is in the database.
//
//   const client = new ChatMemoryClient("/ws/chat/my-session/", {create: true});
//   client.addEventListener("change", () => show(client.rows, client.streams, client.outbox));
//   client.connect();
//   client.send("Hello");
//
// Events: `state` (the connection), `change` (rows, session, outbox), `text` (a streamed text;
// detail: {key, piece}, piece null where the whole text is new), `reset`, `synced`.

const VERSION = 1;
const SILENCE_MS = 45_000;
const FIRST_RETRY_MS = 500;
const LONGEST_RETRY_MS = 10_000;
const LONGEST_HOLD_MS = 30_000;
const HOPELESS = new Set([4401, 4403, 4404, 4409, 4426]);

export class ChatMemoryClient extends EventTarget {
  // url: of the websocket; a path is one of this page's host.
  // create: make the session if there is none; its key must be a version-4 UUID.
  // storage: where unacknowledged messages are kept, under `storageKey`; null for nowhere.
  constructor(url, {create = false, storage = defaultStorage(), storageKey = `chatmemory:${url}`} = {}) {
    super();
    const address = new URL(url, globalThis.location?.href);
    address.protocol = address.protocol.replace(/^http/, "ws");
    this.url = address.href;
    this.create = create;

    this.state = "idle"; // idle, connecting, live, waiting (for the next try), ended
    this.ending = null; // {code, reason} where the state is ended
    this.title = "";
    this.session = null; // the newest `session` frame
    this.limits = {};
    this.rows = new Map(); // seq → `message` frame
    this.streams = new Map(); // "turn:step" → {key, turn, step, text, event}
    this.outbox = []; // {client_id, text, epoch, state: new | sent | held | failed, code, message}
    this.stopping = null; // the turn whose end was asked for

    this.#storage = storage;
    this.#storageKey = storageKey;
    this.#restore();
  }

  #storage;
  #storageKey;
  #socket = null;
  #cursor = null;
  #isSynced = false;
  #bye = null;
  #tries = 0;
  #retryTimer = 0;
  #silenceTimer = 0;
  #holdTimer = 0;
  #heldFor = null; // the code for which nothing is sent for a while
  #holds = 0;
  #lastId = 0;
  #requests = new Map(); // id → {resolve, reject}
  #sending = null; // the entry of the outbox that waits for its answer
  #steps = new Set(); // "turn:step" of the rows
  #fetching = null;

  // Open the socket, now if the next try is still to come.
  connect() {
    if (this.#socket) return;
    clearTimeout(this.#retryTimer);
    this.ending = null;
    this.#bye = null;
    this.#isSynced = false;
    const socket = new WebSocket(this.url);
    this.#socket = socket;
    const mine = (handler) => (event) => this.#socket === socket && handler(event);
    socket.onopen = mine(() => this.#hello());
    socket.onmessage = mine((event) => this.#receive(event.data));
    socket.onclose = mine((event) => this.#lost(event.code, event.reason));
    this.#listen();
    this.#setState("connecting");
  }

  // Close the socket and stay away. A run goes on without us.
  close() {
    clearTimeout(this.#retryTimer);
    this.#forget();
    this.#setState("idle");
  }

  // Keep a message and send it as soon as possible; return its entry in the outbox.
  send(text) {
    const entry = {client_id: randomId(), text, epoch: this.session?.epoch, state: "new"};
    this.outbox.push(entry);
    this.#keep();
    this.#changed();
    this.#pump();
    return entry;
  }

  // Send a message that was refused once more; as a new one only if the old one can't be stored any
  // more, for otherwise it may have been.
  retry(clientId) {
    const entry = this.#entry(clientId);
    if (entry?.state !== "failed") return;
    if (entry.code === "history_cleared" || entry.code === "conflict") {
      Object.assign(entry, {client_id: randomId(), epoch: this.session?.epoch});
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
    if (!entry || entry === this.#sending || (entry.state === "sent" && !this.#isSynced)) return false;
    this.#drop(entry);
    return true;
  }

  // End a turn, by default the running one; what was said so far is kept.
  async stop(turn = this.session?.running?.turn) {
    if (!turn) return;
    this.stopping = turn;
    this.#changed();
    try {
      await this.#request({type: "stop", turn});
    } catch {
      this.stopping = null;
      this.#changed();
    }
  }

  get hasOlder() {
    const oldest = Math.min(...this.rows.keys());
    return this.session !== null && this.rows.size > 0 && oldest > this.session.first_seq;
  }

  // Load the messages before the oldest one; resolves when they are in `rows`.
  fetchOlder(limit = 50) {
    if (!this.hasOlder) return Promise.resolve();
    const frame = {type: "fetch", before_seq: Math.min(...this.rows.keys()), limit};
    this.#fetching ??= this.#request(frame)
      .then(({messages}) => {
        for (const message of messages) this.#upsert(message);
        this.#changed();
      })
      .finally(() => (this.#fetching = null));
    return this.#fetching;
  }

  // The connection

  #hello() {
    if (this.#cursor === null) this.#clear(); // the newest rows come, and may not join to these
    this.#post({
      type: "hello",
      v: VERSION,
      ...(this.#cursor !== null && {cursor: this.#cursor}),
      ...(this.create && {create: true}),
    });
  }

  #post(frame) {
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
    this.#socket = null;
    this.#isSynced = false;
    socket?.close();
    const requests = [...this.#requests.values()];
    this.#requests.clear();
    for (const {reject} of requests) reject({code: "disconnected", retry: true});
    this.#sending = null;
    this.stopping = null;
    this.#release();
  }

  #lost(closeCode, closeReason) {
    const code = this.#bye?.code ?? closeCode;
    const reason = this.#bye?.reason ?? closeReason;
    const again = this.#bye ? this.#bye.reconnect !== false && !HOPELESS.has(code) : !HOPELESS.has(code);
    const tooLarge = code === 1009 ? this.#sending : null;
    this.#forget();
    if (tooLarge) this.#fail(tooLarge, {code: "too_large", message: "The message is too large."});
    if (!again) {
      this.ending = {code, reason};
      this.#setState("ended");
      return;
    }
    const backoff = Math.min(LONGEST_RETRY_MS, FIRST_RETRY_MS * 2 ** this.#tries++);
    const least = this.#bye?.after_ms ?? 0;
    this.#retryTimer = setTimeout(() => this.connect(), least + Math.random() * backoff);
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
        if (!this.#isOfOlder(frame)) this.#upsert(frame);
        break;
      case "reset":
        this.#clear();
        this.session = null;
        this.#cursor = null;
        this.dispatchEvent(new Event("reset"));
        break;
      case "synced":
        this.#cursor = frame.cursor;
        this.#tries = 0;
        if (this.#isSynced) return;
        this.#isSynced = true;
        this.#setState("live");
        this.dispatchEvent(new Event("synced"));
        this.#pump();
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
        this.#post({type: "pong", n: frame.n});
        return;
      case "bye":
        this.#bye = frame;
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
    if (this.stopping && this.stopping !== turn) this.stopping = null;
    if (this.#heldFor === "busy" && !frame.running && !frame.waiting?.length) {
      this.#release();
      this.#pump();
    }
  }

  // Whether it is a change of a row older than all that are here; `fetchOlder` brings it.
  #isOfOlder(frame) {
    return frame.revision > 0 && this.rows.size > 0 && frame.seq < Math.min(...this.rows.keys());
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
    if (this.#steps.has(key)) return;
    let stream = this.streams.get(key);
    const isNew = !stream || frame.type === "snapshot";
    if (!stream) {
      stream = {key, turn: frame.turn, step: frame.step, text: "", event: null};
      this.streams.set(key, stream);
    }
    if (frame.event) stream.event = frame.event;
    if (frame.text != null) stream.text = isNew ? frame.text : stream.text + frame.text;
    if (isNew || frame.event) this.#changed();
    const piece = isNew ? null : frame.text ?? "";
    this.dispatchEvent(new CustomEvent("text", {detail: {key, piece}}));
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
      this.#post({...frame, id});
    });
  }

  // The outbox: one message is on its way at a time, so they arrive in order.

  #pump() {
    const entry = this.outbox.find(({state}) => state !== "failed");
    if (!entry || this.#sending || !this.#isSynced || this.#heldFor) return;
    const {client_id, text, epoch} = entry;
    const frame = {type: "send", client_id, text, ...(epoch != null && {epoch})};
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
      () => {
        this.#sending = null;
        this.#holds = 0;
        this.#drop(entry);
        this.#pump();
      },
      (error) => {
        if (error.code === "disconnected") return; // again after the next `synced`
        this.#sending = null;
        if (error.retry) this.#hold(entry, error);
        else this.#fail(entry, error);
        this.#pump();
      },
    );
  }

  #hold(entry, error) {
    Object.assign(entry, {state: "held", code: error.code, message: error.message});
    this.#heldFor = error.code;
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
    const kept = this.outbox.map(({client_id, text, epoch, state, code, message}) =>
      state === "failed" ? {client_id, text, epoch, state, code, message} : {client_id, text, epoch},
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
