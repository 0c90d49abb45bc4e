// The chat's id is in the page's address, so a reload opens the same chat.
const key = location.hash.slice(1) || crypto.randomUUID();
location.hash = key;

const rows = new Map(); // the stored messages, by seq
const streams = new Map(); // texts that are not stored yet, by turn and step
let session = {};

const find = (selector) => document.querySelector(selector);
const streamOf = ({turn, step}) => `${turn}:${step}`;

async function post(path, body) {
  const token = document.cookie.match(/csrftoken=([^;]+)/)?.[1] ?? "";
  const headers = {"Content-Type": "application/json", "X-CSRFToken": token};
  const response = await fetch(path, {method: "POST", headers, body: JSON.stringify(body)});
  if (response.status === 401) location.assign(`/accounts/login/?next=/%23${key}`);
  find("[role=alert]").hidden = response.ok;
  if (!response.ok) find("[role=alert]").textContent = (await response.json()).detail;
  return response.ok;
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
  snapshot(frame) {
    streams.set(streamOf(frame), frame.text);
  },
  delta(frame) {
    streams.set(streamOf(frame), (streams.get(streamOf(frame)) ?? "") + (frame.text ?? ""));
  },
  reset() {
    rows.clear();
    streams.clear();
  },
};

function listen() {
  // The browser reconnects by itself, and sends the last id, from which the server continues.
  const events = new EventSource(`/api/ui/events/${key}`);
  events.addEventListener("message", ({data}) => {
    const frame = JSON.parse(data);
    handlers[frame.type]?.(frame);
    if (frame.type === "bye" && !frame.reconnect) events.close();
    show();
  });
}

const opened = post("/api/sessions/", {key});
opened.then((isOpen) => isOpen && listen());

find("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const input = event.target.elements.text;
  const message = {client_id: crypto.randomUUID(), text: input.value};
  input.value = "";
  await opened;
  if (!(await post(`/api/sessions/${key}/messages/`, message))) input.value ||= message.text;
});
find("[type=button]").addEventListener("click", () => post(`/api/sessions/${key}/stop/`, {}));
