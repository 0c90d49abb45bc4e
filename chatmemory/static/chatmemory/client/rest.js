// Calls of the REST API: login, repeats after a lost connection, problems.

/** @import {Call, Problem, RestOptions} from "./rest-types.d.ts" */

const MAX_REPEATS = 3;
const FIRST_PAUSE_MS = 500;
const TIMEOUT_MS = 30_000;
const RETRY_STATUSES = [429, 502, 503, 504]; // of proxies, after which the unchanged call may succeed

/**
 * The API refused a call, or no response arrived. `code` is one of the API's, `disconnected` (with
 * status 0), or `bad_response` for a response that is not the API's, such as a proxy's.
 */
export class ApiError extends Error {
  /** @type {string | null} of a message; send it again with the same one */
  client_id = null;
  attempts = 1; // how often the call was sent

  /**
   * @param {number} status
   * @param {Problem} problem
   * @param {ErrorOptions} options
   */
  constructor(status, problem, options = {}) {
    super(problem.detail, options);
    this.name = "ApiError";
    this.status = status;
    this.code = problem.code;
    this.retry = problem.retry ?? false; // whether the unchanged call may succeed later
    this.retry_after = problem.retry_after ?? 0; // seconds
    this.field = problem.field ?? null;
    this.limit = problem.limit ?? null;
    this.turn = problem.turn ?? null;
    this.ref = problem.ref ?? null;
  }
}

export class Http {
  #url;
  #options;

  /**
   * @param {string} url
   * @param {RestOptions} options
   */
  constructor(url, options) {
    this.#url = new URL(`${url.replace(/\/+$/, "")}/`, globalThis.location?.href);
    this.#options = options;
  }

  /**
   * Send a call until a response arrives; resolves to its JSON. Rejects with ApiError, or with the
   * signal's reason.
   *
   * @param {Call} call
   * @returns {Promise<any>}
   */
  async request(call) {
    const {canRepeat = true, signal} = call;
    for (let attempt = 1; ; attempt += 1) {
      const options = await this.#optionsOf(call);
      try {
        return await fieldsOf(await this.#fetch(call, options), call.accepts);
      } catch (error) {
        signal?.throwIfAborted();
        const failure = error instanceof ApiError ? error : disconnected(error);
        failure.attempts = attempt;
        if (error instanceof ApiError || !canRepeat || attempt > MAX_REPEATS) throw failure;
      }
      // Random, so that the clients of a restarted server do not return all together.
      const maxPause = FIRST_PAUSE_MS * 2 ** (attempt - 1);
      await new Promise((resolve) => setTimeout(resolve, Math.random() * maxPause));
    }
  }

  /**
   * Send a call once; resolves to its response, whose body is not read.
   *
   * @param {Call} call
   * @returns {Promise<Response>}
   */
  async stream(call) {
    const options = await this.#optionsOf(call);
    const response = await this.#fetch(call, options).catch((error) => {
      call.signal?.throwIfAborted();
      throw disconnected(error);
    });
    if (!response.ok) await fieldsOf(response);
    return response;
  }

  /**
   * @param {Call} call
   * @returns {Promise<RequestInit>}
   */
  async #optionsOf({method, body, isPublic, headers: own}) {
    const {headers: given, credentials = "same-origin"} = this.#options;
    const headers = new Headers(
      isPublic ? {} : typeof given === "function" ? await given() : given,
    );
    const token = method === "GET" ? null : this.#csrfToken();
    if (token && !headers.has("X-CSRFToken")) headers.set("X-CSRFToken", token);
    if (body) headers.set("Content-Type", "application/json");
    for (const [name, value] of Object.entries(own ?? {})) headers.set(name, value);
    const content = body && JSON.stringify(body);
    return {method, headers, body: content, credentials: isPublic ? "omit" : credentials};
  }

  /**
   * @param {Call} call
   * @param {RequestInit} options
   */
  #fetch({path, query = {}, signal, timeoutMs = 0}, options) {
    const address = new URL(path, this.#url);
    for (const [name, value] of Object.entries(query)) {
      if (value != null) address.searchParams.set(name, String(value));
    }
    const ms = (this.#options.timeoutMs ?? TIMEOUT_MS) + timeoutMs;
    const timeout = Number.isFinite(ms) ? [AbortSignal.timeout(ms)] : [];
    const signals = [...timeout, ...(signal ? [signal] : [])];
    return fetch(address, {...options, signal: AbortSignal.any(signals)});
  }

  // Another origin must not see the token of the page's own.
  #csrfToken() {
    const {csrfToken, csrfCookie = "csrftoken"} = this.#options;
    if (csrfToken || this.#url.origin !== globalThis.location?.origin) return csrfToken;
    const start = `${csrfCookie}=`;
    const cookie = document.cookie.split("; ").find((each) => each.startsWith(start));
    return cookie?.slice(start.length);
  }
}

/**
 * The path with these names, percent-encoded. Throws ApiError for a name that a URL cannot contain.
 *
 * @param {(string | number)[]} names
 */
export function pathOf(...names) {
  const texts = names.map(String);
  // Servers decode "%2F", and URLs remove dots: it would be the path of another resource.
  if (texts.some((name) => ["", ".", ".."].includes(name) || name.includes("/"))) {
    throw new ApiError(404, {code: "not_found", detail: "No resource has this URL."});
  }
  return texts.map((name) => `${encodeURIComponent(name)}/`).join("");
}

/**
 * @param {unknown} cause
 */
function disconnected(cause) {
  const detail = cause instanceof Error ? cause.message : String(cause);
  return new ApiError(0, {code: "disconnected", detail, retry: true}, {cause});
}

/**
 * @param {Response} response
 * @param {number[]} accepts statuses besides 2xx
 */
async function fieldsOf(response, accepts = []) {
  const {status, ok} = response;
  const fields = parsed(await response.text());
  if (fields && !fields.code && (ok || accepts.includes(status))) return fields;
  const seconds = Number(response.headers.get("Retry-After"));
  throw new ApiError(status, {
    retry_after: seconds || 0,
    ...(fields?.code && !ok
      ? fields
      : {
          code: "bad_response",
          detail: `The response is not the API's: ${status} ${response.statusText}`,
          retry: RETRY_STATUSES.includes(status),
        }),
  });
}

/**
 * The object in a text, or null.
 *
 * @param {string} text
 */
function parsed(text) {
  try {
    const value = JSON.parse(text);
    return typeof value === "object" ? value : null;
  } catch {
    return null;
  }
}
