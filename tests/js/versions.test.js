import assert from "node:assert/strict";
import {test} from "node:test";
import {
  beginsTurn,
  newestUserSeq,
  pathOf,
  replacedRanges,
  turnStart,
  versionsOf,
} from "../../chatmemory/static/chatmemory/client/versions.js";
import {row} from "./socket.js";

/** @import {OutboxEntry, Range} from "../../chatmemory/static/chatmemory/client/types.d.ts" */

/**
 * Questions and answers in turn.
 *
 * @param {string[]} texts
 */
function talk(...texts) {
  return new Map(
    texts.map((text, index) => {
      const role = index % 2 ? /** @type {const} */ ("assistant") : "user";
      return [index + 1, row(index + 1, text, {role})];
    }),
  );
}

/**
 * @param {ReturnType<typeof talk>} rows
 * @param {Range[]} replaced
 * @param {[number, number][]} chosen
 */
function shown(rows, replaced, chosen = []) {
  return pathOf({rows, replaced, firstSeq: 1}, new Map(chosen));
}

/** @param {ReturnType<typeof shown>} path */
function textsOf(path) {
  return path.map((item) => item.row.text);
}

const NESTED = talk("a", "A", "b", "B", "b2", "B2", "a2", "A2", "c", "C", "c2", "C2");
/** @type {Range[]} */
const REPLACED = [
  [3, 4],
  [1, 6],
  [9, 10],
];

test("superseded rows are hidden", () => {
  const path = shown(NESTED, REPLACED);
  assert.deepEqual(textsOf(path), ["a2", "A2", "c2", "C2"]);
  assert.deepEqual(path[0].version, {of: 7, number: 2, count: 2});
  assert.ok(path.every(({isOld}) => !isOld));
});

test("a chosen version ends the path, and has its own versions", () => {
  const outer = shown(NESTED, REPLACED, [[7, 1]]);
  assert.deepEqual(textsOf(outer), ["a", "A", "b2", "B2"]);
  assert.deepEqual(outer[0].version, {of: 7, number: 1, count: 2});
  assert.deepEqual(outer[2].version, {of: 5, number: 2, count: 2});
  assert.ok(outer.every(({isOld}) => isOld));
  const inner = shown(NESTED, REPLACED, [
    [7, 1],
    [5, 3],
  ]);
  assert.deepEqual(textsOf(inner), ["a", "A", "b", "B"]);
});

test("rows before a chosen version are not old", () => {
  const path = shown(NESTED, REPLACED, [[11, 9]]);
  assert.deepEqual(
    path.map(({row, isOld}) => [row.text, isOld]),
    [
      ["a2", false],
      ["A2", false],
      ["c", true],
      ["C", true],
    ],
  );
});

test("a version whose rows are not loaded is not shown", () => {
  const rows = new Map([...NESTED].slice(6));
  assert.deepEqual(textsOf(shown(rows, REPLACED, [[7, 1]])), ["a2", "A2", "c2", "C2"]);
});

test("versions form a chain that ends at the floor", () => {
  /** @type {Range[]} */
  const ranges = [
    [1, 2],
    [3, 4],
  ];
  assert.deepEqual(versionsOf(5, ranges, 1), [
    {from: 1, to: 2},
    {from: 3, to: 4},
    {from: 5, to: Infinity},
  ]);
  assert.equal(versionsOf(5, ranges, 2).length, 2);
});

test("a replacement in the outbox hides what it will supersede, until it fails", () => {
  const rows = talk("one", "1");
  /** @type {OutboxEntry} */
  const entry = {client_id: "x", text: "un", replaces: 1, state: "sent"};
  assert.deepEqual(textsOf(shown(rows, replacedRanges(null, rows, [entry]))), []);
  const failed = /** @type {OutboxEntry} */ ({...entry, state: "failed"});
  assert.deepEqual(replacedRanges(null, rows, [failed]), []);
  rows.set(3, row(3, "un", {client_id: "x"}));
  assert.deepEqual(textsOf(shown(rows, replacedRanges(null, rows, [entry]))), ["un"]);
});

test("a user message inside a turn does not start one", () => {
  const rows = new Map([
    [1, row(1, "asked", {turn: "t", client_id: "t"})],
    [2, row(2, "inserted by a graph", {turn: "t"})],
    [3, row(3, "answer", {turn: "t", role: "assistant"})],
  ]);
  assert.deepEqual([...rows.values()].map(beginsTurn), [true, false, false]);
  assert.equal(turnStart(rows, 3), 1);
  assert.equal(newestUserSeq(rows), 2);
  assert.equal(turnStart(new Map(), 3), -Infinity);
});
