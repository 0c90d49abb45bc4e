import assert from "node:assert/strict";
import {afterEach, beforeEach, mock, test} from "node:test";
import {liveClient, makeClient, row, settle, socket, sockets, TestStorage} from "./socket.js";

beforeEach(() => mock.timers.enable({apis: ["setTimeout", "Date"]}));
afterEach(() => {
  mock.restoreAll();
  mock.timers.reset();
});

/** @param {object} fields */
async function accept(fields = {}) {
  const {id, client_id: turn} = socket().last("send");
  socket().emit("ok", {id, turn, status: "running", duplicate: false, seq: 1, ...fields});
  await settle();
}

/**
 * @param {string} code
 * @param {object} fields
 */
async function refuse(code, fields = {}) {
  const {id} = socket().last("send");
  socket().emit("error", {id, code, message: "No.", retry: false, ...fields});
  await settle();
}

test("messages are sent one after another", async () => {
  const client = liveClient();
  client.send("one");
  client.send("two");
  assert.equal(socket().count("send"), 1);
  await accept();
  assert.deepEqual([socket().count("send"), socket().last("send").text], [2, "two"]);
});

test("a message has a client_id and the epoch of its history", () => {
  const client = liveClient();
  const {client_id: id} = client.send("one", {ifBusy: "reject"});
  assert.match(id, /^[A-Za-z0-9_-]{22}$/);
  const {id: requestId, ...frame} = socket().last("send");
  const expected = {type: "send", client_id: id, text: "one", if_busy: "reject", epoch: 7};
  assert.deepEqual(frame, expected);
  assert.equal(typeof requestId, "number");
});

test("an unacknowledged message is sent again with its client_id", () => {
  const client = liveClient();
  const {client_id: id} = client.send("one");
  socket().drop(1011);
  mock.timers.tick(500);
  assert.equal(sockets.length, 2);
  assert.equal(socket().count("send"), 0);
  socket().welcome();
  assert.equal(socket().last("send").client_id, id);
});

test("unacknowledged messages remain in the storage of the tab until they are acknowledged", async () => {
  const storage = new TestStorage();
  const first = makeClient({storage, storageKey: "unsent"});
  const {client_id: id} = first.send("one");
  const client = liveClient({storage, storageKey: "unsent"});
  assert.equal(socket().last("send").client_id, id);
  await accept();
  assert.equal(storage.getItem("unsent"), null);
  assert.deepEqual(
    client.outbox.map(({state}) => state),
    ["stored"],
  );
  socket().emit("synced", {cursor: "c2"});
  assert.deepEqual(client.outbox, []);
});

test("a full storage loses no message of an open page", () => {
  const storage = new TestStorage();
  storage.setItem = () => {
    throw new Error("QuotaExceededError");
  };
  liveClient({storage}).send("one");
  assert.equal(socket().last("send").text, "one");
});

test("broken content of the storage is ignored", () => {
  const storage = new TestStorage();
  storage.setItem("unsent", "{");
  assert.deepEqual(makeClient({storage, storageKey: "unsent"}).outbox, []);
});

test("a refused message is retried after the pause if the server allows it", async () => {
  mock.method(Math, "random", () => 0);
  const client = liveClient();
  const {client_id: id} = client.send("one");
  await refuse("rate_limited", {retry: true, retry_after_ms: 700});
  assert.equal(client.outbox[0].state, "held");
  mock.timers.tick(699);
  assert.equal(socket().count("send"), 1);
  mock.timers.tick(1);
  assert.deepEqual([socket().count("send"), socket().last("send").client_id], [2, id]);
});

test("pauses without a time of the server grow to 30 s", async () => {
  mock.method(Math, "random", () => 0);
  liveClient().send("one");
  for (const pause of [1, 2, 4, 8, 16, 30, 30]) {
    const before = socket().count("send");
    await refuse("unavailable", {retry: true});
    mock.timers.tick(pause * 1_000 - 1);
    assert.equal(socket().count("send"), before);
    mock.timers.tick(1);
    assert.equal(socket().count("send"), before + 1);
    socket().emit("ping", {n: 1}); // or the connection would be silent
  }
});

test("what a full queue refused is sent once a turn has ended", async () => {
  const running = {turn: "t", status: /** @type {const} */ ("running"), since: null};
  const client = liveClient({}, {session: {running}});
  client.send("one");
  await refuse("queue_full", {retry: true, retry_after_ms: 60_000});
  socket().emitSession({running, revision: 1});
  assert.equal(socket().count("send"), 1);
  socket().emitSession({revision: 2});
  assert.equal(socket().count("send"), 2);
});

test("a refused message stays failed, and does not delay the next", async () => {
  const client = liveClient();
  const {client_id: id} = client.send("one");
  client.send("two");
  await refuse("bad_text");
  assert.deepEqual([client.outbox[0].state, client.outbox[0].code], ["failed", "bad_text"]);
  assert.equal(socket().last("send").text, "two");
  client.retry(id);
  await accept();
  assert.equal(socket().last("send").client_id, id);
});

test("a message refused after a clear is retried as a new one", async () => {
  const client = liveClient();
  const {client_id: id} = client.send("one");
  await refuse("history_cleared");
  socket().emitSession({epoch: 8});
  client.retry(id);
  assert.notEqual(socket().last("send").client_id, id);
  assert.equal(socket().last("send").epoch, 8);
});

test("a replacement fails if a turn runs, and a send by the server's policy does not", async () => {
  const client = liveClient({}, {rows: [row(1, "one"), row(2, "1", {role: "assistant"})]});
  client.edit(1, "other");
  const {replaces, expect_seq: expected} = socket().last("send");
  assert.deepEqual([replaces, expected], [1, 1]);
  await refuse("busy", {retry: true});
  assert.equal(client.outbox[0].state, "failed");
  client.send("two");
  await refuse("busy", {retry: true});
  assert.equal(client.outbox[1].state, "held");
});

test("a replacement that conflicted is retried against the newest message", async () => {
  const client = liveClient({}, {rows: [row(1, "one")]});
  const {client_id: id} = client.edit(1, "other");
  socket().emit("message", row(2, "two"));
  await refuse("conflict");
  client.retry(id);
  const {client_id: newId, replaces, expect_seq: expected} = socket().last("send");
  assert.notEqual(newId, id);
  assert.deepEqual([replaces, expected], [1, 2]);
});

test("another answer repeats the content of its message", () => {
  const content = [{type: "text", text: "in parts"}];
  const rows = [row(1, "in parts", {content}), row(2, "1", {role: "assistant"})];
  liveClient({}, {rows}).regenerate(2);
  const frame = socket().last("send");
  assert.deepEqual([frame.content, "text" in frame, frame.replaces], [content, false, 1]);
});

test("only the start of a turn can be replaced", () => {
  const client = liveClient({}, {rows: [row(1, "one"), row(2, "1", {role: "assistant"})]});
  assert.throws(() => client.edit(2, "other"), RangeError);
  assert.throws(() => client.regenerate(0), RangeError);
});

test("a frame above the server's limit is not sent", () => {
  const client = liveClient();
  client.send("\x01".repeat(100)); // six bytes each in JSON
  client.send("two");
  assert.deepEqual([client.outbox[0].code, socket().count("send")], ["too_large", 1]);
  assert.equal(socket().last("send").text, "two");
});

test("a frame for whose size the server closed is not sent again", () => {
  const client = liveClient();
  client.send("one");
  socket().drop(1009);
  assert.deepEqual([client.outbox[0].state, client.outbox[0].code], ["failed", "too_large"]);
});

test("discard() drops a message only if it is not in flight", async () => {
  const client = liveClient();
  const one = client.send("one");
  const two = client.send("two");
  assert.equal(client.discard(one.client_id), false);
  assert.equal(client.discard(two.client_id), true);
  assert.equal(client.discard("unknown"), false);
  socket().drop(1011);
  assert.equal(client.discard(one.client_id), false); // it may be stored
  assert.deepEqual(client.outbox, [one]);
});

test("a duplicate is dropped, since its row is loaded", async () => {
  const client = liveClient();
  client.send("one");
  await accept({duplicate: true});
  assert.deepEqual(client.outbox, []);
});
