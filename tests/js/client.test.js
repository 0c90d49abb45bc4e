import assert from "node:assert/strict";
import {afterEach, beforeEach, mock, test} from "node:test";
/** @import {Stream} from "../../chatmemory/static/chatmemory/client/types.d.ts" */
import {liveClient, makeClient, row, settle, socket, sockets} from "./socket.js";

beforeEach(() => mock.timers.enable({apis: ["setTimeout", "Date"]}));
afterEach(() => mock.timers.reset());

const running = {turn: "t", status: /** @type {const} */ ("running"), since: null};

/** @param {import("../../chatmemory/static/chatmemory/client/chatmemory-client.js").ChatMemoryClient} client */
function texts(client) {
  return [...client.rows.values()].map(({text}) => text);
}

test("newer revisions replace rows, older ones do not", () => {
  const client = liveClient({}, {rows: [row(1, "one"), row(2, "two", {revision: 2})]});
  socket().emit("message", row(1, "one!", {revision: 1}));
  socket().emit("message", row(2, "older", {revision: 1}));
  assert.deepEqual(texts(client), ["one!", "two"]);
});

test("rows below the floor are dropped, and an older session is ignored", () => {
  const client = liveClient({}, {rows: [row(1, "one"), row(2, "two")]});
  socket().emitSession({first_seq: 2, last_seq: 2, revision: 5});
  socket().emitSession({first_seq: 1, last_seq: 2, revision: 4, archived: true});
  assert.deepEqual(texts(client), ["two"]);
  assert.equal(client.session?.archived, false);
});

test("a change of a row that is not loaded makes no gap", () => {
  const client = liveClient({}, {rows: [row(9, "nine")], session: {first_seq: 3}});
  socket().emit("message", row(4, "four", {revision: 1}));
  assert.deepEqual(texts(client), ["nine"]);
});

test("a reset drops rows and session, and reports lost messages", () => {
  const client = liveClient({}, {rows: [row(1, "one")]});
  /** @type {unknown[]} */
  const details = [];
  client.addEventListener("reset", (event) =>
    details.push(/** @type {CustomEvent} */ (event).detail),
  );
  socket().emit("reset", {reason: "diverged", epoch: 8, lost: null});
  assert.deepEqual(details, [{reason: "diverged", lost: null}]);
  assert.deepEqual([client.rows.size, client.session, client.lost], [0, null, null]);
});

test("streamed text is set by a snapshot, grows by deltas and ends with its row", () => {
  const client = liveClient({}, {rows: [row(1, "hi", {turn: "t"})], session: {running}});
  /** @type {unknown[]} */
  const pieces = [];
  client.addEventListener("text", (event) =>
    pieces.push(/** @type {CustomEvent} */ (event).detail.piece),
  );
  const step = {turn: "t", step: 0};
  socket().emit("snapshot", {...step, text: "Hel"});
  socket().emit("delta", {...step, text: "lo"});
  socket().emit("snapshot", {...step, text: "Hello again"});
  assert.deepEqual(pieces, [null, "lo", null]);
  assert.equal(client.streams.get("t:0")?.text, "Hello again");
  socket().emit("message", row(2, "Hello again!", {...step, role: "assistant"}));
  socket().emit("delta", {...step, text: " late"});
  assert.equal(client.streams.size, 0);
});

test("blocks of a streamed text follow each other, and count code points", () => {
  const client = liveClient({html: "de"}, {session: {running}});
  assert.equal(socket().sent[0].html, "de");
  /** @type {unknown[]} */
  const keys = [];
  client.addEventListener("block", (event) =>
    keys.push(/** @type {CustomEvent} */ (event).detail.key),
  );
  const step = {turn: "t", step: 0};
  const shown = () => {
    const {html, text, closed, isWhole} = /** @type {Stream} */ (client.streams.get("t:0"));
    return [html, text.slice(closed), isWhole];
  };
  socket().emit("block", {...step, start: 0, end: 4, html: "unknown"});
  socket().emit("snapshot", {...step, text: "😀 a\n😀 b\nc"});
  socket().emit("block", {...step, start: 0, end: 4, html: "A"});
  socket().emit("block", {...step, start: 5, end: 8, html: "skipped"});
  assert.deepEqual(shown(), ["A", "😀 b\nc", false]);
  socket().emit("block", {...step, start: 4, end: 8, html: "B"});
  assert.deepEqual(shown(), ["AB", "c", false]);
  socket().emit("block", {...step, start: 8, end: 20, html: "C", last: true});
  assert.deepEqual(shown(), ["ABC", "", true]);
  assert.deepEqual(keys, ["t:0", "t:0", "t:0"]);
  socket().emit("snapshot", {...step, text: "😀 a"});
  assert.deepEqual(shown(), ["", "😀 a", false]);
});

test("streams of a turn end with the turn", () => {
  const client = liveClient({}, {session: {running}});
  socket().emit("delta", {turn: "t", step: 0, text: "part"});
  socket().emitSession({revision: 1});
  assert.equal(client.streams.size, 0);
});

test("activity lasts until its event ends, and thinking until text arrives", () => {
  const client = liveClient({}, {session: {running}});
  const names = () => client.activity.map(({kind, name}) => name || kind);
  /**
   * @param {string} kind
   * @param {string} name
   * @param {string} state
   */
  const report = (kind, name, state) =>
    socket().emit("delta", {turn: "t", step: 0, event: {kind, name, state}});
  report("tool", "search", "started");
  report("tool", "search", "half");
  report("thinking", "", "started");
  assert.deepEqual(names(), ["search", "thinking"]);
  socket().emit("delta", {turn: "t", step: 0, text: "It is"});
  assert.deepEqual(names(), ["search"]);
  report("tool", "search", "failed");
  assert.deepEqual(names(), []);
});

test("a stop is repeated after a loss as long as the turn runs", async () => {
  const client = liveClient({}, {session: {running}});
  client.stop();
  assert.deepEqual([client.stopping, socket().last("stop").turn], ["t", "t"]);
  socket().drop(1011);
  mock.timers.tick(500);
  socket().welcome({session: {running}});
  assert.equal(socket().last("stop").turn, "t");
  socket().drop(1011);
  mock.timers.tick(1_000);
  socket().welcome();
  assert.deepEqual([client.stopping, socket().count("stop")], [null, 0]);
});

test("a refused stop can be requested again", async () => {
  const client = liveClient({}, {session: {running}});
  const stopped = client.stop();
  socket().emit("error", {
    id: socket().last("stop").id,
    code: "unknown_turn",
    message: "No.",
    retry: false,
  });
  await stopped;
  assert.equal(client.stopping, null);
});

test("cancel() resolves to the status of the turn, and rejects without a connection", async () => {
  const client = liveClient();
  const cancelled = client.cancel("w");
  socket().emit("ok", {id: socket().last("stop").id, turn: "w", status: "cancelled"});
  assert.equal(await cancelled, "cancelled");
  const lost = client.cancel("w");
  socket().drop(1011);
  await assert.rejects(lost, {code: "disconnected"});
  await assert.rejects(makeClient().cancel("w"), {code: "disconnected"});
});

test("older messages are loaded once, and not after a reset", async () => {
  const client = liveClient({}, {rows: [row(9, "nine")], session: {first_seq: 7, last_seq: 9}});
  const first = client.fetchOlder();
  assert.equal(client.fetchOlder(), first);
  const {type, before_seq: before, limit} = socket().last("fetch");
  assert.deepEqual([type, before, limit], ["fetch", 9, 50]);
  socket().emit("ok", {id: socket().last("fetch").id, messages: [row(8, "eight")]});
  await first;
  assert.deepEqual(client.oldest, 8);
  const second = client.fetchOlder();
  socket().emit("reset", {reason: "cleared", epoch: 8, lost: 0});
  socket().emit("ok", {id: socket().last("fetch").id, messages: [row(7, "seven")]});
  await second;
  assert.equal(client.rows.size, 0);
});

test("fetchFrom() loads pages up to a number", async () => {
  const client = liveClient({}, {rows: [row(300, "newest")], session: {last_seq: 300}});
  const done = client.fetchFrom(150);
  for (const oldest of [200, 100]) {
    assert.equal(socket().last("fetch").limit, 100);
    socket().emit("ok", {id: socket().last("fetch").id, messages: [row(oldest, "older")]});
    await settle();
  }
  await done;
  assert.deepEqual([client.oldest, socket().count("fetch")], [100, 2]);
});

test("state events follow the connection", () => {
  const client = makeClient();
  /** @type {string[]} */
  const states = [];
  client.addEventListener("state", () => states.push(client.state));
  client.addEventListener("synced", () => states.push("synced"));
  client.connect();
  socket().welcome();
  socket().emit("synced", {cursor: "c2"});
  socket().drop(4404);
  client.close();
  assert.deepEqual(states, ["connecting", "live", "synced", "ended", "idle"]);
  assert.equal(sockets.length, 1);
});

test("a rename is sent, and its refusal rejects", async () => {
  const client = liveClient({}, {session: {running}});
  const renamed = client.rename("A kettle");
  assert.equal(socket().last("rename").title, "A kettle");
  socket().emit("ok", {id: socket().last("rename").id, title: "A kettle"});
  await renamed;
  const refused = client.rename("x".repeat(201));
  socket().emit("error", {
    id: socket().last("rename").id,
    code: "bad_field",
    message: "title is too long.",
    retry: false,
  });
  await assert.rejects(refused, {code: "bad_field"});
});

test("feedback is sent, and the reply that comes again has it", async () => {
  const client = liveClient({}, {session: {}});
  const rated = client.feedback("c1", -1, "Wrong.");
  const {id, turn, value, reason} = socket().last("feedback");
  assert.deepEqual({turn, value, reason}, {turn: "c1", value: -1, reason: "Wrong."});
  socket().emit("ok", {id, turn, feedback: value});
  await rated;
});
