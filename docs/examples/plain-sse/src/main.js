// The chat's id is in the page's address, so a reload opens the same chat.
const key = location.hash.slice(1) || crypto.randomUUID();
location.hash = key;

const rows = new Map(); // by seq
const streams = new Map(); // text that is not stored yet, by turn and step
let session = {};

const find = (selector) => document.querySelector(selector);
const id = ({turn, step}) => `${turn}:${step}`;

function complain(text) {
  find("[role=alert]").textContent = text;
  find("[role=alert]").hidden = !text;
}

async function post(path, body) {
  const token = document.cookie.match(/csrftoken=([^;]+)/)?.[1] ?? "";
  const headers = {"Content-Type": "application/json", "X-CSRFToken": token};
  const response = await fetch(path, {method: "POST", headers, body: JSON.stringify(body)});
  if (response.status === 401) location.assign(`/accounts/login/?next=/%23${key}`);
  complain(response.ok ? "" : (await response.json()).detail);
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

await post("/api/sessions/", {key});

// The browser reconnects by itself, and sends the last id, from which the server continues.
const events = new EventSource(`/api/ui/events/${key}`);
const handlers = {
  session(frame) {
    session = frame;
  },
  message(frame) {
    rows.set(frame.seq, frame);
    streams.delete(id(frame));
  },
  snapshot(frame) {
    streams.set(id(frame), frame.text);
  },
  delta(frame) {
    streams.set(id(frame), (streams.get(id(frame)) ?? "") + (frame.text ?? ""));
  },
  reset() {
    rows.clear();
    streams.clear();
  },
};
for (const [type, handle] of Object.entries(handlers)) {
  events.addEventListener(type, ({data}) => {
    handle(JSON.parse(data));
    show();
  });
}

find("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const message = {client_id: crypto.randomUUID(), text: event.target.elements.text.value};
  if (await post(`/api/sessions/${key}/messages/`, message)) event.target.reset();
});
find("[type=button]").addEventListener("click", () => post(`/api/sessions/${key}/stop/`, {}));
