// The steps of a reply, folded: tool calls with arguments and result, and the reasoning of the model.
// The page loads this module with the first step; _steps.html builds the same nodes.

import {arrange} from "../shared/arrange.js";
import {MAX_SHOWN_CHARS} from "../shared/constants.js";
import {interpolate} from "../shared/language.js";
import {addStyle} from "../shared/style.js";
import {words} from "./chat-words.js";
import {formatted, formattedArgs} from "./json.js";
import {noteOf} from "./messages.js";
import {find, link, textBox} from "./nodes.js";
import {stepsWords} from "./steps-words.js";
import {visible} from "./text.js";

/** @import {ChatMemoryClient} from "../client/chatmemory-client.js" */
/** @import {MessageNodes} from "./messages.js" */
/** @import {MessageFrame, PathItem, ToolCall} from "../client/types.d.ts" */

/**
 * @typedef {object} Step
 * @property {string} key
 * @property {MessageFrame} row of the call
 * @property {string} name
 * @property {ToolCall | null} call null if the call is not loaded
 * @property {MessageFrame | undefined} result
 * @property {"running" | "done" | "failed" | "missing" | "thought"} state
 */

const MIN_SECONDS = 0.1;

export class Steps {
  /** @type {Map<ToolCall, MessageFrame>} */
  #results = new Map();
  /** @type {Map<number, MessageFrame[]>} the row with the first steps of a group → all of them */
  #groups = new Map();
  /** Whether a tool runs. */
  isRunning = false;
  #client;
  #page;

  /**
   * Load the style of steps.
   *
   * @param {ChatMemoryClient} client
   * @param {string | null} page address of the session's page
   * @param {Node} rows
   */
  static async load(client, page, rows) {
    await addStyle(rows, ["element/steps.css"]);
    return new Steps(client, page);
  }

  /**
   * @param {ChatMemoryClient} client
   * @param {string | null} page
   */
  constructor(client, page) {
    this.#client = client;
    this.#page = page;
  }

  /**
   * Remove the rows that `draw` shows with another one: a result with the last call before it that
   * has its id, and a row without text with the steps that it continues.
   *
   * @param {PathItem[]} path
   */
  fold(path) {
    /** @type {Map<string, ToolCall>} */
    const calls = new Map();
    this.#results.clear();
    const rest = path.filter(({row}) => {
      for (const call of row.calls ?? []) calls.set(call.id, call);
      const call = row.result && calls.get(row.result.call);
      if (!call) return true;
      this.#results.set(call, row);
      calls.delete(call.id);
      return false;
    });
    this.#groups.clear();
    /** @type {MessageFrame | undefined} */
    let head;
    const heads = rest.filter(({row}) => {
      const group = head && continues(row, head) ? this.#groups.get(head.seq) : undefined;
      group?.push(row);
      if (group) return false;
      head = hasCalls(row) ? row : undefined;
      if (head) this.#groups.set(head.seq, [head]);
      return true;
    });
    const groups = [...this.#groups.values()];
    const isRunning = (/** @type {MessageFrame} */ row) =>
      this.#stepsOf(row).some(({state}) => state === "running");
    this.isRunning = groups.flat().some(isRunning);
    return heads;
  }

  /**
   * Show the steps of these rows.
   *
   * @param {PathItem[]} path
   * @param {MessageNodes} nodes
   */
  draw(path, nodes) {
    for (const {row} of path) {
      const node = nodes.row(row.seq);
      if (node) this.#draw(node, row);
    }
  }

  /**
   * Show the steps of a row, and of those that continue them. Nodes that are shown remain, opened or
   * not.
   *
   * @param {HTMLElement} node
   * @param {MessageFrame} row
   */
  #draw(node, row) {
    const rows = this.#groups.get(row.seq) ?? [];
    const steps = rows.flatMap((member) => [
      ...(member !== row && member.reasoning ? [thoughtOf(member)] : []),
      ...this.#stepsOf(member),
    ]);
    if (node.dataset.steps !== String(row.revision)) {
      node.querySelector(":scope > .cm-thought")?.remove();
      if (row.reasoning) textBox(node).before(this.#thought(row, row.reasoning));
    }
    if (steps.length || row.reasoning) node.dataset.steps = String(row.revision);
    else delete node.dataset.steps;
    let group = node.querySelector(/** @type {"details"} */ (":scope > .cm-steps"));
    if (!steps.length) return group?.remove();
    if (!group) {
      group = element("details", "cm-steps");
      group.append(element("summary", ""), element("div", "cm-step-list"));
      find(node, ":scope > .cm-note", HTMLElement).before(group);
    }
    const list = find(group, ".cm-step-list", HTMLElement);
    const shown = new Map([...list.children].map((one) => [one.getAttribute("data-step"), one]));
    const nodes = steps.map((step) => {
      const one = shown.get(step.key) ?? this.#step(step);
      if (step.state !== "thought") this.#update(one, step, step.state);
      return one;
    });
    arrange(list, nodes);
    showGroup(group, list, steps);
  }

  /**
   * @param {MessageFrame} row
   * @returns {Step[]}
   */
  #stepsOf(row) {
    const about = (/** @type {number} */ index) => ({
      row,
      key: `${row.seq}.${row.revision}.${index}`,
    });
    if (row.role === "tool") {
      const {name = "", failed = false} = row.result ?? {};
      return [{...about(0), name, call: null, result: row, state: failed ? "failed" : "done"}];
    }
    const isRunning = row.turn === this.#client.session?.running?.turn;
    return (row.calls ?? []).map((call, index) => {
      const result = this.#results.get(call);
      const missing = isRunning ? "running" : "missing";
      const state = !result ? missing : result.result?.failed ? "failed" : "done";
      return {...about(index), name: call.name, call, result, state};
    });
  }

  /** @param {Step} step */
  #step({key, row, name, call, state}) {
    if (state === "thought" && row.reasoning) {
      const thought = this.#thought(row, row.reasoning);
      thought.dataset.step = key;
      return thought;
    }
    const node = document.createElement("details");
    node.dataset.step = key;
    const summary = document.createElement("summary");
    const title = element("span", "cm-step-name", visible(name) || words.authors.tool);
    summary.append(title, " ", element("span", "cm-step-state"));
    node.append(summary);
    if (call?.args) {
      const part = element("div", "cm-step-part");
      const box = textBoxOf(stepsWords.arguments, formattedArgs(call.args, call.cut), call.cut);
      box.dir = "ltr";
      part.append(element("p", "cm-step-label", stepsWords.arguments), box);
      if (call.cut) part.append(this.#note("", row));
      node.append(part);
    }
    return node;
  }

  /**
   * Show the state and the result of a step.
   *
   * @param {Element} node
   * @param {Step} step
   * @param {Exclude<Step["state"], "thought">} state
   */
  #update(node, {row, call, result}, state) {
    node.className = `cm-step cm-step-${state}`;
    const label = find(node, ".cm-step-state", HTMLElement);
    const text = stepsWords.states[state];
    if (label.textContent !== text) label.textContent = text;
    const duration = call && result ? durationOf(row, result) : "";
    if (duration && !node.querySelector(".cm-step-time")) {
      label.before(element("span", "cm-step-time", duration), " ");
    }
    const key = result ? `${result.seq}.${result.revision}` : "";
    const known = node.querySelector("[data-result]");
    if (known?.getAttribute("data-result") === key) return;
    known?.remove();
    if (result) node.append(this.#result(result, key));
  }

  /**
   * @param {MessageFrame} row
   * @param {string} key
   */
  #result(row, key) {
    const part = element("div", "cm-step-part");
    part.dataset.result = key;
    part.append(element("p", "cm-step-label", stepsWords.result));
    const text = row.text.slice(0, MAX_SHOWN_CHARS);
    if (text) part.append(textBoxOf(stepsWords.result, formatted(text)));
    const isCut = row.cut || row.text.length > MAX_SHOWN_CHARS;
    part.append(this.#note(noteOf(row), isCut ? row : null));
    return part;
  }

  /**
   * @param {MessageFrame} row
   * @param {{text: string, cut: boolean}} reasoning
   */
  #thought(row, {text, cut}) {
    const node = document.createElement("details");
    node.className = "cm-step cm-thought";
    const summary = document.createElement("summary");
    summary.textContent = stepsWords.reasoning;
    node.append(summary, textBoxOf(stepsWords.reasoning, text, cut));
    if (cut) node.append(this.#note("", row));
    return node;
  }

  /**
   * A note, with a link to the whole message if it is cut.
   *
   * @param {string} text
   * @param {MessageFrame | null} cut
   */
  #note(text, cut) {
    const node = element("p", "cm-step-note", text);
    if (cut && this.#page) node.append(" ", link(`${this.#page}${cut.seq}/`, words.showWhole));
    return node;
  }
}

/** @param {MessageFrame} row */
const hasCalls = ({role, calls}) => role === "tool" || Boolean(calls?.length);

/**
 * Whether a row has nothing but steps, of the same turn.
 *
 * @param {MessageFrame} row
 * @param {MessageFrame} head
 */
function continues(row, head) {
  const isBare = row.role === "tool" || !(row.text || row.redacted || row.status !== "complete");
  return hasCalls(row) && isBare && row.turn === head.turn;
}

/**
 * @param {MessageFrame} row
 * @returns {Step}
 */
const thoughtOf = (row) => ({
  key: `${row.seq}.${row.revision}.thought`,
  row,
  name: "",
  call: null,
  result: undefined,
  state: "thought",
});

/**
 * How long a tool ran; empty below 0.1 s, as for messages that were stored together.
 *
 * @param {MessageFrame} call
 * @param {MessageFrame} result
 */
function durationOf(call, result) {
  const passed = Date.parse(result.created_at) - Date.parse(call.created_at);
  const seconds = Math.round(passed / 100) / 10;
  return seconds >= MIN_SECONDS ? interpolate(stepsWords.seconds, {seconds}) : "";
}

/**
 * Show what a group contains. One step needs no group: its line is always shown.
 *
 * @param {HTMLDetailsElement} group
 * @param {HTMLElement} list
 * @param {Step[]} steps
 */
function showGroup(group, list, steps) {
  const isSingle = steps.length === 1;
  if (isSingle) group.open = true;
  else if (group.hasAttribute("data-single"))
    group.open = Boolean(list.querySelector("details[open], :focus"));
  group.toggleAttribute("data-single", isSingle);
  const tools = steps.filter(({state}) => state !== "thought");
  const running = tools.find(({state}) => state === "running");
  const failed = tools.filter(({state}) => state === "failed").length;
  const title = running ? words.usingTool(visible(running.name)) : stepsWords.used(tools.length);
  const shown = [title, failed ? stepsWords.failures(failed) : ""];
  const summary = find(group, "summary", HTMLElement);
  if (summary.dataset.shown === shown.join()) return;
  summary.dataset.shown = shown.join();
  summary.replaceChildren(element("span", "cm-step-title", title));
  if (failed) summary.append(" ", element("span", "cm-step-state cm-step-bad", shown[1]));
}

/**
 * A box that scrolls, which the keyboard must reach.
 *
 * @param {string} label
 * @param {string} text
 */
function textBoxOf(label, text, isCut = false) {
  const node = element("div", "cm-step-box", visible(text) + (isCut ? "…" : ""));
  node.dir = "auto";
  node.tabIndex = 0;
  node.role = "group";
  node.ariaLabel = label;
  return node;
}

/**
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {string} className
 * @param {string} text
 */
function element(tag, className, text = "") {
  const node = document.createElement(tag);
  node.className = className;
  node.textContent = text;
  return node;
}
