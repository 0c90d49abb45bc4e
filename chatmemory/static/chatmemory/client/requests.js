// Frames that the server answers with one `ok` or `error` each.

/** @import {ErrorFrame, Failure, OkFrame, RequestFrame} from "./types.d.ts" */

export class Requests {
  #lastId = 0;
  /** @type {Map<number | string, {resolve: (frame: OkFrame) => void, reject: (failure: Failure) => void}>} */
  #pending = new Map();
  #put;

  /** @param {(frame: any) => void} put sends a frame */
  constructor(put) {
    this.#put = put;
  }

  /**
   * Send a frame; resolves to its `ok`. Rejects with its `error`, or with `{code: "disconnected"}`.
   *
   * @param {RequestFrame} frame
   * @returns {Promise<OkFrame>}
   */
  send(frame) {
    return new Promise((resolve, reject) => {
      const id = ++this.#lastId;
      this.#pending.set(id, {resolve, reject});
      this.#put({...frame, id});
    });
  }

  /** @param {OkFrame | ErrorFrame} frame */
  settle(frame) {
    const request = this.#pending.get(frame.id ?? "");
    if (!request) return;
    this.#pending.delete(frame.id ?? "");
    if (frame.type === "ok") request.resolve(frame);
    else request.reject(frame);
  }

  rejectAll() {
    const requests = [...this.#pending.values()];
    this.#pending.clear();
    for (const {reject} of requests) reject(disconnected());
  }
}

/** @returns {Failure} */
export function disconnected() {
  return {code: "disconnected", retry: true};
}
