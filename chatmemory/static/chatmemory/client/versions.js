// Which rows belong to the conversation: an edit or a second answer supersedes a range of rows, which
// stays stored as an older version of the turn.

/** @import {MessageFrame, OutboxEntry, PathItem, Range, SessionFrame, Version} from "./types.d.ts" */

/** @typedef {{rows: Map<number, MessageFrame>, replaced: Range[], firstSeq: number}} Conversation */

/**
 * Whether a turn starts with this row. A graph may also insert user messages in the middle of one.
 *
 * @param {MessageFrame | undefined} row
 */
export function beginsTurn(row) {
  return row?.role === "user" && (row.turn == null || row.turn === row.client_id);
}

/**
 * The highest number of a user's message, -Infinity if there is none.
 *
 * @param {Map<number, MessageFrame>} rows
 */
export function newestUserSeq(rows) {
  return maxSeq(rows, (row) => row.role === "user");
}

/**
 * The user's message that starts the turn of this row, -Infinity if it is not loaded.
 *
 * @param {Map<number, MessageFrame>} rows
 * @param {number} seq
 */
export function turnStart(rows, seq) {
  return maxSeq(rows, (row) => row.seq <= seq && beginsTurn(row));
}

/**
 * @param {Map<number, MessageFrame>} rows
 * @param {(row: MessageFrame) => boolean} test
 */
function maxSeq(rows, test) {
  return Math.max(...[...rows.values()].filter(test).map(({seq}) => seq));
}

/**
 * The superseded ranges, as they will be once the outbox is stored.
 *
 * @param {SessionFrame | null} session
 * @param {Map<number, MessageFrame>} rows
 * @param {OutboxEntry[]} outbox
 * @returns {Range[]}
 */
export function replacedRanges(session, rows, outbox) {
  const stored = new Map([...rows.values()].map((row) => [row.client_id, row.seq - 1]));
  /** @type {Range[]} */
  const pending = [];
  for (const {replaces, state, client_id: id} of outbox) {
    if (replaces == null || state === "failed") continue;
    pending.push([replaces, stored.get(id) ?? Number.MAX_SAFE_INTEGER]);
  }
  return [...(session?.superseded ?? []), ...pending];
}

/**
 * The versions of the turn that starts at a message, the oldest first and this one last.
 *
 * A replacement directly follows the range that it supersedes, so the ranges form a chain.
 *
 * @param {number} seq
 * @param {Range[]} replaced
 * @param {number} firstSeq
 * @returns {Version[]}
 */
export function versionsOf(seq, replaced, firstSeq) {
  const versions = [{from: seq, to: Infinity}];
  for (;;) {
    const before = replaced.find(([, to]) => to === versions[0].from - 1);
    if (!before || before[0] < firstSeq) return versions;
    versions.unshift({from: before[0], to: before[1]});
  }
}

/**
 * The rows to show, in ascending order.
 *
 * @param {Conversation} conversation
 * @param {Map<number, number>} chosen user message → the first row of the version shown instead of it
 * @returns {PathItem[]}
 */
export function pathOf(conversation, chosen) {
  const seqs = [...conversation.rows.keys()].sort((a, b) => a - b);
  return pathInside({from: 0, to: Infinity}, seqs, conversation, chosen);
}

/**
 * @param {Version} bounds
 * @param {number[]} seqs
 * @param {Conversation} conversation
 * @param {Map<number, number>} chosen
 * @returns {PathItem[]}
 */
function pathInside({from: low, to: high}, seqs, conversation, chosen) {
  const {rows, replaced, firstSeq} = conversation;
  // A range that reaches the upper bound supersedes this version itself, and does not hide its rows.
  const hidden = replaced.filter(([from, to]) => low <= from && to < high);
  /** @type {PathItem[]} */
  const path = [];
  for (const seq of seqs) {
    if (seq < low || seq > high || hidden.some(([from, to]) => from <= seq && seq <= to)) continue;
    const row = /** @type {MessageFrame} */ (rows.get(seq));
    // The first row of a nested version has the versions that its caller lists.
    const versions = beginsTurn(row) && seq > low ? versionsOf(seq, replaced, firstSeq) : [];
    const count = versions.length;
    const index = versions.findIndex(({from}) => from === chosen.get(seq));
    if (0 <= index && index < count - 1 && rows.has(versions[index].from)) {
      const older = pathInside(versions[index], seqs, conversation, chosen);
      older[0].version = {of: seq, number: index + 1, count};
      return [...path, ...older.map((item) => ({...item, isOld: true}))];
    }
    path.push({row, version: count > 1 ? {of: seq, number: count, count} : null, isOld: false});
  }
  return path;
}
