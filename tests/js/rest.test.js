import assert from "node:assert/strict";
import {once} from "node:events";
import {createServer} from "node:http";
import {afterEach, mock, test} from "node:test";
import {ApiError, RestClient} from "../../chatmemory/static/chatmemory/client/chatmemory-rest.js";

/** @import {IncomingMessage, RequestListener, Server} from "node:http" */
/** @import {AddressInfo} from "node:net" */
/** @import {RestOptions} from "../../chatmemory/static/chatmemory/client/rest-types.d.ts" */

/** @type {Server[]} */
const servers = [];
/** @type {IncomingMessage[]} */
const requests = [];

afterEach(() => {
  for (const server of servers.splice(0)) {
    server.closeAllConnections();
    server.close();
  }
  requests.length = 0;
  mock.restoreAll();
  Reflect.deleteProperty(globalThis, "location");
  Reflect.deleteProperty(globalThis, "document");
});

/** @param {RequestListener} answer */
async function serve(answer) {
  const server = createServer((request, response) => {
    requests.push(request);
    answer(request, response);
  });
  servers.push(server);
  await once(server.listen(0, "127.0.0.1"), "listening");
  return `http://127.0.0.1:${/** @type {AddressInfo} */ (server.address()).port}`;
}

/**
 * A client of a server that returns this object.
 *
 * @param {object} fields
 * @param {RestOptions} options
 */
async function answering(fields, options = {}) {
  const address = await serve((_, response) => response.end(JSON.stringify(fields)));
  return new RestClient(`${address}/api`, options);
}

/** @param {string} href */
function openPage(href, cookie = "a=b; csrftoken=secret; other=c") {
  Object.assign(globalThis, {location: new URL(href), document: {cookie}});
}

/** @param {Promise<unknown>} work */
async function failure(work) {
  const error = await work.catch((reason) => reason);
  assert.ok(error instanceof ApiError, String(error));
  return error;
}

test("a write sends the token of the page's cookie, a read does not", async () => {
  const address = await serve((_, response) => response.end("{}"));
  openPage(`${address}/chat/`);
  const rest = new RestClient("/api/");
  await rest.archiveSession("k");
  await rest.getSession("k");
  assert.deepEqual(
    requests.map(({url, headers}) => [url, headers["x-csrftoken"]]),
    [
      ["/api/sessions/k/archive/", "secret"],
      ["/api/sessions/k/", undefined],
    ],
  );
});

test("another origin does not see the token of the page", async () => {
  const rest = await answering({});
  openPage("https://page.example/");
  await rest.archiveSession("k");
  assert.equal(requests[0].headers["x-csrftoken"], undefined);
});

test("the page can give the token or name its cookie", async () => {
  const address = await serve((_, response) => response.end("{}"));
  openPage(`${address}/chat/`, "xsrf=other");
  await new RestClient("/api/", {csrfToken: "given"}).archiveSession("k");
  await new RestClient("/api/", {csrfCookie: "xsrf"}).archiveSession("k");
  await new RestClient("/api/").archiveSession("k");
  assert.deepEqual(
    requests.map(({headers}) => headers["x-csrftoken"]),
    ["given", "other", undefined],
  );
});

test("headers can be a function, which is called for each request", async () => {
  let number = 0;
  const headers = async () => ({Authorization: `Bearer ${++number}`});
  const rest = await answering({}, {headers});
  await rest.listTurns("k");
  await rest.listTurns("k");
  await rest.getHealth();
  assert.deepEqual(
    requests.map((request) => request.headers.authorization),
    ["Bearer 1", "Bearer 2", undefined],
  );
});

test("a call is repeated after a cut connection, with the same key and client_id", async () => {
  /** @type {string[]} */
  const bodies = [];
  const address = await serve(async (request, response) => {
    let body = "";
    for await (const piece of request) body += piece;
    bodies.push(body);
    if (bodies.length % 2) request.socket.destroy();
    else response.end("{}");
  });
  const rest = new RestClient(`${address}/api/`);
  await rest.openSession();
  await rest.sendMessage("k", {text: "hi"});
  assert.equal(bodies.length, 4);
  assert.equal(bodies[0], bodies[1]);
  assert.equal(bodies[2], bodies[3]);
  assert.match(
    JSON.parse(bodies[0]).key,
    /^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/,
  );
});

test("a body that breaks off is a cut connection", async () => {
  const address = await serve((request, response) => {
    response.writeHead(200, {"Content-Length": "50"});
    response.write("{");
    if (requests.length < 3) setTimeout(() => request.socket.destroy(), 10);
    else response.end(`"a": 1${" ".repeat(42)}}`);
  });
  assert.deepEqual(await new RestClient(address).getSession("k"), {a: 1});
  assert.equal(requests.length, 3);
});

test("a response that takes too long is a cut connection, and repeats are bounded", async () => {
  const address = await serve(() => {});
  const rest = new RestClient(address, {timeoutMs: 200});
  const error = await failure(rest.listSessions());
  assert.deepEqual(
    [error.status, error.code, error.retry, error.attempts],
    [0, "disconnected", true, 4],
  );
  assert.equal(requests.length, 4);
});

test("the timeout begins after the wait for the reply", async () => {
  const address = await serve((_, response) => setTimeout(() => response.end("{}"), 300));
  const rest = new RestClient(address, {timeoutMs: 100});
  for (const wait of [5, true]) await rest.sendMessage("k", {text: "hi", wait});
  assert.equal(requests.length, 2);
});

test("a signal aborts a call that waits for its answer, and later calls", async () => {
  const reason = new Error("left the page");
  const controller = new AbortController();
  const address = await serve(() => controller.abort(reason));
  const rest = new RestClient(address);
  const {signal} = controller;
  for (const call of [rest.listSessions({}, {signal}), rest.exportOwnData({}, {signal})]) {
    assert.equal(await call.catch((error) => error), reason);
  }
  assert.equal(
    await rest
      .sessions({}, {signal})
      .next()
      .catch((error) => error),
    reason,
  );
  assert.ok(requests.length <= 2);
});

test("a signal that is aborted before a repeat prevents it", async () => {
  const reason = new Error("left the page");
  const controller = new AbortController();
  const address = await serve((request) => {
    setTimeout(() => controller.abort(reason));
    request.socket.destroy();
  });
  mock.method(Math, "random", () => 1); // the longest pause before the repeat
  const {signal} = controller;
  const calling = new RestClient(address).listSessions({}, {signal});
  assert.equal(await calling.catch((error) => error), reason);
  assert.equal(requests.length, 1);
});

test("a response that is not the API's is an error with a code", async () => {
  const answers = [502, 200];
  const address = await serve((_, response) => {
    response.statusCode = answers.shift() ?? 503;
    response.setHeader("Retry-After", "7");
    response.end("<html>");
  });
  const rest = new RestClient(address);
  const bad = await failure(rest.getSession("k"));
  const {status, code, retry, retry_after, attempts} = bad;
  assert.deepEqual([status, code, retry, retry_after, attempts], [502, "bad_response", true, 7, 1]);
  const page = await failure(rest.getSession("k"));
  assert.deepEqual([page.status, page.code, page.retry], [200, "bad_response", false]);
  assert.equal((await failure(rest.getHealth())).code, "bad_response");
});

test("a name that would be another path is not found", async () => {
  const rest = await answering({});
  for (const key of ["", ".", "..", "k/messages/1"]) {
    assert.equal((await failure(rest.getSession(key))).code, "not_found", key);
    assert.equal((await failure(rest.withdrawFeedback("k", key))).code, "not_found", key);
  }
  await rest.getSession("a%2Fb?c#d");
  assert.deepEqual(
    requests.map(({url}) => url),
    ["/api/sessions/a%252Fb%3Fc%23d/"],
  );
});
