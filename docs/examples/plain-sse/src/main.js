const API = import.meta.env.VITE_API ?? "/chat/api";

// The chat's id is in the page's address, so a reload opens the same chat.
const key = location.hash.slice(1) || crypto.randomUUID();
location.hash = key;

const rows = new Map(); // the stored messages, by seq
const streams = new Map(); // texts that are not stored yet, by turn and step
let session = {};
let cursor = ""; // what this page has received

const find = (selector) => document.querySelector(selector);
const streamOf = ({turn, step}) => `${turn}:${step}`;

async function post(path, body) {
  const token = document.cookie.match(/csrftoken=([^;]+)/)?.[1] ?? "";
  const headers = {"Content-Type": "application/json", "X-CSRFToken": token};
  const request = fetch(path, {method: "POST", headers, body: JSON.stringify(body)});
  const response = await request.catch(() => new Response(null, {status: 503}));
  if (response.status === 401) location.assign(`/accounts/login/?next=/%23${key}`);
  const {detail} = await response.json().catch(() => ({detail: "The server cannot be reached."}));
  find("[role=alert]").textContent = response.ok ? "" : detail;
  return response;
}

function article(role, text) {
  const element = document.createElement("article");
  element.dataset.role = role;
  element.textContent = text;
  return element;
}

function show() {
  const stored = [...rows.values()].filter(({seq}) => seq >= session.first_seq);
  find("main").replaceChildren(
    ...stored.sort((a, b) => a.seq - b.seq).map(({role, text}) => article(role, text)),
    ...[...streams.values()].map((text) => article("assistant", text)),
    ...(session.waiting ?? []).map(({text}) => article("user", `Waiting: ${text}`)),
  );
  find("[type=button]").disabled = !session.running;
}

const handlers = {
  session(frame) {
    session = frame;
  },
  message(frame) {
    rows.set(frame.seq, frame);
    streams.delete(streamOf(frame));
  },
  snapshot: (frame) => streams.set(streamOf(frame), frame.text),
  delta(frame) {
    streams.set(streamOf(frame), (streams.get(streamOf(frame)) ?? "") + (frame.text ?? ""));
  },
  reset() {
    rows.clear();
    streams.clear();
  },
  synced(frame) {
    cursor = frame.cursor;
  },
};

async function open() {
  const {ok, status} = await post(`${API}/sessions/`, {key});
  if (ok) listen();
  else if (status >= 500) setTimeout(open, 2000);
}

function listen() {
  const events = new EventSource(`${API}/ui/events/${key}${cursor && `?cursor=${cursor}`}`);
  events.addEventListener("message", ({data}) => {
    const frame = JSON.parse(data);
    handlers[frame.type]?.(frame);
    if (frame.type === "bye" && !frame.reconnect) events.close();
    show();
  });
  // The browser reconnects by itself, and sends the last cursor; but not after an HTTP error.
  events.addEventListener("error", () => events.readyState === EventSource.CLOSED && open());
}

const opened = open();

find("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const input = event.target.elements.text;
  const message = {client_id: crypto.randomUUID(), text: input.value};
  input.value = "";
  await opened;
  const {ok} = await post(`${API}/sessions/${key}/messages/`, message);
  if (!ok) input.value ||= message.text;
});
find("[type=button]").addEventListener("click", () => post(`${API}/sessions/${key}/stop/`, {}));
