// Makes the calls of stdin with the REST client, and writes the results to stdout. test_rest.py runs it.

import {ApiError, RestClient} from "../../chatmemory/static/chatmemory/client/chatmemory-rest.js";

/** @param {any} value */
async function plain(value) {
  const found = await value;
  if (found instanceof Response) return await found.text();
  if (!found?.[Symbol.asyncIterator]) return found;
  const entries = [];
  for await (const entry of found) entries.push(entry);
  return entries;
}

const {url, options, calls} = JSON.parse(
  await new Response(/** @type {any} */ (process.stdin)).text(),
);
const rest = /** @type {any} */ (new RestClient(url, options));
const results = [];
for (const [name, ...given] of calls) {
  try {
    results.push(await plain(rest[name](...given)));
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    results.push({...error, message: error.message});
  }
}
process.stdout.write(JSON.stringify(results));
