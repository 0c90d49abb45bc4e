// A driver reads calls from stdin and writes their results to stdout, each a line of JSON.
// Calls run at the same time; a result has the number of its call.

import {createInterface} from "node:readline";

/** Call these functions by name, each with the fields of its call. */
export async function serve(functions) {
  for await (const line of createInterface({input: process.stdin})) {
    const {number, name, ...fields} = JSON.parse(line);
    Promise.resolve(fields)
      .then(functions[name])
      .then((result) => ({number, result: result ?? null}))
      .catch((error) => ({number, failure: error.stack}))
      .then((answer) => process.stdout.write(`${JSON.stringify(answer)}\n`));
  }
}

const DEADLINE_MS = 50_000; // before that of the test, which does not know the reason

/** Resolve when the condition holds; fail with what `state` returns if it never does. */
export async function until(condition, state = () => "") {
  const end = Date.now() + DEADLINE_MS;
  while (!condition()) {
    if (Date.now() > end) throw new Error(`never: ${condition} ${JSON.stringify(state())}`);
    await new Promise((done) => setTimeout(done, 10));
  }
}

const BROKEN = "network error"; // the message of Chromium for a body that breaks

/** Return a response whose body breaks as in a browser, at the latest after so many bytes. */
export function breakable(response, bytes, close) {
  async function* part() {
    let left = bytes;
    for await (const piece of response.body) {
      if (piece.length >= left) {
        yield piece.subarray(0, left);
        close();
        throw new TypeError(BROKEN);
      }
      left -= piece.length;
      yield piece;
    }
  }
  async function* pieces() {
    try {
      yield* part();
    } catch (error) {
      throw error.name === "AbortError" ? error : new TypeError(BROKEN);
    }
  }
  return new Response(ReadableStream.from(pieces()), response);
}

/** `fetch` of a page: it adds the server and the login, and may cut the next response. */
export class Network {
  constructor({server, cookie, token}) {
    this.server = server;
    this.headers = {Cookie: cookie, "X-CSRFToken": token};
    this.cutAfter = Number.POSITIVE_INFINITY;
    this.last = []; // the newest requests and their statuses, for failures
  }

  fetch = async (path, {headers, signal, ...options} = {}) => {
    const connection = new AbortController();
    const bytes = this.cutAfter;
    this.cutAfter = Number.POSITIVE_INFINITY;
    const response = await fetch(this.server + path, {
      ...options,
      headers: {...headers, ...this.headers},
      signal: AbortSignal.any([connection.signal, ...(signal ? [signal] : [])]),
    });
    this.last = [...this.last.slice(-5), `${options.method ?? "GET"} ${path} ${response.status}`];
    if (!response.ok || !response.body) return response;
    return breakable(response, bytes, () => connection.abort());
  };
}
