import assert from "node:assert/strict";
import {afterEach, beforeEach, mock, test} from "node:test";
import "../../chatmemory/static/chatmemory/client/refusal.js"; // the client imports it later
import {liveClient, makeClient, row, settle, socket, sockets, TestStorage} from "./socket.js";

beforeEach(() => mock.timers.enable({apis: ["setTimeout", "Date"]}));
afterEach(() => {
  mock.restoreAll();
  mock.timers.reset();
});

test("a path becomes the websocket address of its host", () => {
  assert.equal(makeClient().url, "wss://chat.test/ws/chat/k/");
});

test("a ping is answered with its number", () => {
  liveClient();
  socket().emit("ping", {n: 5});
  assert.deepEqual(socket().last("pong"), {type: "pong", n: 5});
});

test("an unknown frame is ignored", () => {
  const client = liveClient({}, {rows: [row(1, "one")]});
  socket().emit("newer_than_this_client", {seq: 1});
  assert.equal(client.state, "live");
  assert.equal(client.rows.size, 1);
});

test("a session to create is connected by its first message, which is not lost before", () => {
  const options = {create: true, storage: new TestStorage(), storageKey: "key"};
  const client = makeClient(options);
  client.connect();
  assert.deepEqual([client.state, sockets.length], ["idle", 0]);
  client.send("one");
  assert.deepEqual([client.state, sockets.length], ["connecting", 1]);
  client.close();
  makeClient(options).connect(); // after a reload of the page
  socket().welcome();
  assert.equal(socket().last("send").text, "one");
});

test("a session to create is not connected before connect() or after close(), nor for a refused message", () => {
  const storage = new TestStorage();
  const failed = {client_id: "c1", text: "one", state: "failed", code: "too_large"};
  storage.setItem("key", JSON.stringify([failed]));
  const client = makeClient({create: true, storage, storageKey: "key"});
  client.retry("c1");
  assert.equal(sockets.length, 0);
  storage.setItem("key", JSON.stringify([failed]));
  const other = makeClient({create: true, storage, storageKey: "key"});
  other.connect();
  assert.equal(sockets.length, 0);
  other.close();
  other.retry("c1");
  assert.equal(sockets.length, 0);
  other.connect();
  assert.equal(sockets.length, 1);
});

test("a session that the server refuses to create is not tried again before a retry", () => {
  const client = makeClient({create: true});
  client.connect();
  for (const text of ["one", "two"]) client.send(text);
  socket().accept();
  socket().emit("error", {id: null, code: "too_many", message: "Delete one first."});
  assert.deepEqual([client.state, sockets.length], ["idle", 1]);
  const shown = client.outbox.map(({state, code, message}) => [state, code, message]);
  assert.deepEqual(shown, Array(2).fill(["failed", "too_many", "Delete one first."]));
  client.retry(client.outbox[0].client_id);
  assert.equal(sockets.length, 2);
  socket().welcome();
  assert.equal(socket().last("send").text, "one");
});

test("a reconnect sends the cursor, and does not create a session", () => {
  const client = makeClient({create: true});
  client.connect();
  client.send("one");
  socket().welcome();
  assert.equal(socket().last("hello").create, true);
  socket().drop(1011);
  assert.equal(client.state, "waiting");
  assert.deepEqual(client.ending, {code: 1011, reason: "", message: undefined});
  mock.timers.tick(500);
  socket().accept();
  const none = {create: false, html: null, person: null};
  assert.deepEqual(socket().last("hello"), {type: "hello", v: 1, cursor: "c1", ...none});
});

test("each hello names the person for whom the page was made", () => {
  liveClient({person: "7"});
  assert.equal(socket().last("hello").person, "7");
  socket().drop(1011);
  mock.timers.tick(500);
  socket().accept();
  assert.equal(socket().last("hello").person, "7");
});

test("pauses between attempts grow to 10 s, and start again after a success", () => {
  mock.method(Math, "random", () => 1);
  liveClient();
  for (const pause of [500, 1_000, 2_000, 4_000, 8_000, 10_000, 10_000]) {
    const before = sockets.length;
    socket().drop(1011);
    mock.timers.tick(pause - 1);
    assert.equal(sockets.length, before);
    mock.timers.tick(1);
    assert.equal(sockets.length, before + 1);
  }
  socket().welcome();
  socket().drop(1011);
  const before = sockets.length;
  mock.timers.tick(500);
  assert.equal(sockets.length, before + 1);
});

test("connect() does not wait for the next attempt", () => {
  const client = liveClient();
  socket().drop(1011);
  client.connect();
  client.connect();
  assert.equal(sockets.length, 2);
  mock.timers.tick(1_000);
  assert.equal(sockets.length, 2); // the timer of that attempt is cancelled
});

for (const [code, afterMs] of [
  [4503, 60_000],
  [4429, null],
]) {
  test(`a bye with code ${code} delays connect() too`, () => {
    mock.method(Math, "random", () => 0);
    const client = liveClient();
    socket().emit("bye", {code, reason: "test", reconnect: true, after_ms: afterMs});
    mock.timers.tick((afterMs ?? 10_000) - 1);
    client.connect();
    assert.equal(sockets.length, 1);
    mock.timers.tick(1);
    assert.equal(sockets.length, 2);
  });
}

for (const code of [4401, 4403, 4404, 4409, 4426]) {
  test(`a close with code ${code} is final`, () => {
    const client = liveClient();
    socket().drop(code);
    assert.equal(client.state, "ended");
    mock.timers.tick(120_000);
    assert.equal(sockets.length, 1);
  });
}

test("a bye that forbids reconnecting is final, whatever its code", () => {
  const client = liveClient();
  socket().emit("bye", {code: 1011, reason: "test", reconnect: false, after_ms: null});
  assert.equal(client.state, "ended");
});

test("45 s of silence are a lost connection", () => {
  const client = liveClient();
  mock.timers.tick(44_999);
  assert.equal(client.state, "live");
  socket().emit("ping", {n: 1});
  mock.timers.tick(44_999);
  assert.equal(client.state, "live");
  mock.timers.tick(1);
  assert.deepEqual([client.state, client.ending?.reason], ["waiting", "silence"]);
});

test("close() ends the connection, and events of the old socket are ignored", () => {
  const client = liveClient();
  client.close();
  socket().emit("message", row(1, "late"));
  socket().drop(1006);
  mock.timers.tick(60_000);
  assert.deepEqual([client.state, client.rows.size, sockets.length], ["idle", 0, 1]);
});

test("each connection has its own ticket", async () => {
  const tickets = ["one", "two"];
  const client = makeClient({
    ticket: async () => {
      const ticket = tickets.shift();
      if (!ticket) throw {code: 4401};
      return ticket;
    },
  });
  client.connect();
  client.connect();
  for (const name of ["one", "two"]) {
    await settle();
    assert.deepEqual(socket().protocols, ["chatmemory.v1", `ticket.${name}`]);
    socket().drop(1011);
    mock.timers.tick(1_000);
  }
  await settle();
  assert.deepEqual([client.state, client.ending?.code], ["ended", 4401]);
  assert.equal(sockets.length, 2);
});

test("a ticket function that throws synchronously, even undefined, is a failed attempt", async () => {
  const client = makeClient({
    ticket: () => {
      throw null;
    },
  });
  client.connect();
  await settle();
  assert.deepEqual([client.state, client.ending?.code], ["waiting", 1006]);
});

test("a ticket that arrives after close() opens nothing", async () => {
  const client = makeClient({ticket: async () => "late"});
  client.connect();
  client.close();
  await settle();
  assert.equal(sockets.length, 0);
});

test("a ticket that no subprotocol can contain is a failed attempt", async () => {
  const client = makeClient({ticket: () => "not a token"});
  client.connect();
  await settle();
  assert.deepEqual([client.state, client.ending?.code], ["waiting", 1006]);
});

/** @param {() => Promise<{status: number}>} answer */
async function refuseFive(answer) {
  const fetched = mock.method(globalThis, "fetch", answer);
  const client = makeClient();
  client.connect();
  for (let i = 0; i < 5; i += 1) {
    assert.equal(fetched.mock.callCount(), 0);
    socket().drop(1006);
    if (i < 4) mock.timers.tick(10_000);
  }
  await settle();
  assert.equal(fetched.mock.callCount(), 1);
  return client;
}

test("a server that answers HTTP but refuses five websockets is final", async () => {
  const client = await refuseFive(async () => ({status: 404}));
  assert.equal(client.state, "ended");
  assert.equal(client.ending?.code, "refused");
  assert.match(
    client.ending.reason,
    /refuses this websocket, .* \(wss:\/\/chat.test\/ws\/chat\/k\/\)$/,
  );
  assert.equal(client.ending.message, undefined);
});

test("a gate that answers HTTP with 403 is not called a missing ASGI server", async () => {
  const logged = mock.method(console, "error", () => {});
  const client = await refuseFive(async () => ({status: 403}));
  assert.equal(client.state, "ended");
  assert.equal(client.ending?.message, "You do not have permission to chat here.");
  assert.match(client.ending.reason, /^A gate .* status 403\. \(wss:/);
  assert.doesNotMatch(logged.mock.calls[0]?.arguments[0], /WSGI|daphne/);
});

test("a close by policy, and a bye with a sentence of the host, are final", () => {
  const closed = liveClient();
  socket().drop(1008);
  assert.equal(closed.state, "ended");
  const client = liveClient();
  const message = "Confirm your second factor first.";
  const refusal = {code: 4403, reason: "refused", reconnect: false, after_ms: null, message};
  socket().emit("bye", refusal);
  assert.deepEqual(client.ending, {code: 4403, reason: "refused", message});
  assert.equal(client.state, "ended");
});

test("a proxy whose server is down is retried, and the console names the status", async () => {
  const warned = mock.method(console, "warn", () => {});
  const client = await refuseFive(async () => ({status: 503}));
  assert.equal(client.state, "waiting");
  assert.equal(warned.mock.callCount(), 1);
  assert.match(warned.mock.calls[0]?.arguments[0], /is answered with status 503/);
});

test("a server that does not answer HTTP is retried", async () => {
  const client = await refuseFive(async () => {
    throw new TypeError("no network");
  });
  assert.equal(client.state, "waiting");
});
