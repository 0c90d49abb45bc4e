// The steps of a reply, folded: tool calls with arguments and result, and the reasoning of the model.
// The page loads this module with the first step; _step.html builds the same nodes.

import {MAX_SHOWN_CHARS} from "../shared/constants.js";
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
 * @property {string} name
 * @property {ToolCall | null} call null if the call is not loaded
 * @property {MessageFrame | undefined} result
 * @property {"running" | "done" | "failed" | "missing"} state
 */

export class Steps {
  /** @type {Map<ToolCall, MessageFrame>} */
  #results = new Map();
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
   * Remove the rows that are the result of a call in the path: `draw` shows them with it. A result
   * belongs to the last call before it with its id.
   *
   * @param {PathItem[]} path
   */
  fold(path) {
    /** @type {Map<string, ToolCall>} */
    const calls = new Map();
    this.#results.clear();
    return path.filter(({row}) => {
      for (const call of row.calls ?? []) calls.set(call.id, call);
      const call = row.result && calls.get(row.result.call);
      if (!call) return true;
      this.#results.set(call, row);
      calls.delete(call.id);
      return false;
    });
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
   * Show the steps of a row. Nodes that show them already remain, opened or not.
   *
   * @param {HTMLElement} node
   * @param {MessageFrame} row
   */
  #draw(node, row) {
    const steps = this.#stepsOf(row);
    const isShown = node.dataset.steps === String(row.revision);
    if (!isShown) {
      for (const old of node.querySelectorAll(":scope > :is(.cm-thought, .cm-steps)")) old.remove();
      delete node.dataset.steps;
      if (!steps.length && !row.reasoning) return;
      node.dataset.steps = String(row.revision);
      if (row.reasoning) textBox(node).before(this.#thought(row, row.reasoning));
      const made = element("div", "cm-steps");
      made.append(...steps.map((step) => this.#step(row, step)));
      if (steps.length) find(node, ":scope > .cm-note", HTMLElement).before(made);
    }
    const shown = node.querySelectorAll(":scope > .cm-steps > details");
    for (const [index, step] of steps.entries()) this.#update(shown[index], step);
  }

  /**
   * @param {MessageFrame} row
   * @returns {Step[]}
   */
  #stepsOf(row) {
    if (row.role === "tool") {
      const {name = "", failed = false} = row.result ?? {};
      return [{name, call: null, result: row, state: failed ? "failed" : "done"}];
    }
    const isRunning = row.turn === this.#client.session?.running?.turn;
    return (row.calls ?? []).map((call) => {
      const result = this.#results.get(call);
      const missing = isRunning ? "running" : "missing";
      const state = !result ? missing : result.result?.failed ? "failed" : "done";
      return {name: call.name, call, result, state};
    });
  }

  /**
   * @param {MessageFrame} row
   * @param {Step} step
   */
  #step(row, {name, call}) {
    const node = document.createElement("details");
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
   */
  #update(node, {result, state}) {
    node.className = `cm-step cm-step-${state}`;
    const label = find(node, ".cm-step-state", HTMLElement);
    const text = stepsWords.states[state];
    if (label.textContent !== text) label.textContent = text;
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
