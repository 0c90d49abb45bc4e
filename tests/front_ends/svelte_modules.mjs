// Lets Node.js import Svelte modules with runes: `node --import ./svelte_modules.mjs -C svelte`.

import {readFile} from "node:fs/promises";
import {register} from "node:module";
import {fileURLToPath} from "node:url";
import {isMainThread} from "node:worker_threads";
import {compileModule} from "svelte/compiler";

export async function load(url, context, next) {
  if (!url.endsWith(".svelte.js")) return next(url, context);
  const text = await readFile(fileURLToPath(url), "utf8");
  const {js} = compileModule(text, {filename: url, generate: "server"});
  return {format: "module", source: js.code, shortCircuit: true};
}

if (isMainThread) register(import.meta.url);
