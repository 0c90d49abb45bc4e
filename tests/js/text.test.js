import assert from "node:assert/strict";
import {test} from "node:test";
import {bannerOf} from "../../chatmemory/static/chatmemory/element/banner.js";
import {words} from "../../chatmemory/static/chatmemory/element/chat-words.js";
import {choicesOf} from "../../chatmemory/static/chatmemory/element/choices.js";
import {
  activityText,
  excessChars,
  firstWords,
  hasMarkup,
  isBlank,
  isQuestion,
  visible,
} from "../../chatmemory/static/chatmemory/element/text.js";
import {row} from "./socket.js";

/** @import {ConnectionState, SessionFrame} from "../../chatmemory/static/chatmemory/client/types.d.ts" */

test("hidden characters become marks, with their number", () => {
  assert.equal(visible("\u202ea \u{e0041}\u{e0041} b"), "⟦U+202E⟧a ⟦U+E0041 ×2⟧ b");
  assert.equal(visible("plain 👩‍👧"), "plain 👩‍👧");
});

test("text without visible characters is blank", () => {
  for (const blank of ["", " \n", "\u200b\ufeff", "\u2800"]) assert.ok(isBlank(blank), blank);
  for (const text of ["a", " . ", "😀"]) assert.ok(!isBlank(text), text);
});

test("the length of a text is counted in code points", () => {
  assert.equal(excessChars("😀".repeat(100), 100), 0);
  assert.equal(excessChars("a".repeat(107), 100), 7);
  assert.equal(excessChars("abc", 100), -97);
  assert.equal(excessChars("abc", Infinity), -Infinity);
});

test("only text that Markdown changes has markup", () => {
  for (const text of ["*a*", "- item", "1) item", "two\nlines", "<b>", "a_b"]) {
    assert.ok(hasMarkup(text), text);
  }
  for (const text of ["plain text.", "It costs 1.50", "a - b"]) assert.ok(!hasMarkup(text), text);
});

test("first words are cut between words", () => {
  assert.equal(firstWords("  two\n words "), "two words");
  assert.equal(firstWords("one two three", 8), "one two…");
  assert.equal(firstWords("abcdefgh", 4), "abcd…");
});

test("an activity names its tool and state", () => {
  assert.equal(activityText({kind: "tool", name: "search", state: "started"}), "Using search…");
  const event = {kind: /** @type {const} */ ("tool"), name: "a\u202e", state: "50 %"};
  assert.equal(activityText(event), "Using a⟦U+202E⟧… 50 %");
  assert.equal(activityText({kind: "thinking", name: "", state: "started"}), words.thinking);
});

test("choices are offered only if all are short texts", () => {
  assert.deepEqual(choicesOf({value: {choices: ["Yes", "No"]}}), ["Yes", "No"]);
  const long = "x".repeat(81);
  const nine = Array.from({length: 9}, (_, index) => `choice ${index}`);
  for (const choices of [["Yes", 1], ["Yes", " "], [long], nine, "Yes", null]) {
    assert.deepEqual(choicesOf({value: {choices}}), []);
  }
  for (const value of [null, "text", 1]) assert.deepEqual(choicesOf({value}), []);
});

test("only an assistant's message is a question", () => {
  assert.ok(isQuestion(row(1, "?", {role: "assistant", asks: {value: null}})));
  assert.ok(!isQuestion(row(1, "?", {asks: {value: null}})));
  assert.ok(!isQuestion(undefined));
});

const online = {isOnline: true, hasDetails: false};
const session = /** @type {SessionFrame} */ ({archived: false});

/**
 * @param {ConnectionState} state
 * @param {number | "refused"} code
 */
function closed(state, code) {
  return {state, ending: {code, reason: "The reason."}, session, lost: 0};
}

test("a banner names the state of the connection", () => {
  const live = {state: /** @type {const} */ ("live"), ending: null, session, lost: 0};
  assert.deepEqual(bannerOf(live, online), {text: ""});
  const offline = {isOnline: false, hasDetails: false};
  assert.deepEqual(bannerOf(live, offline), {text: ""});
  assert.deepEqual(bannerOf({...live, state: "connecting"}, online), {text: words.lost});
  const first = {...live, state: /** @type {const} */ ("connecting"), session: null};
  assert.deepEqual(bannerOf(first, online), {text: words.connecting});
  assert.deepEqual(bannerOf(closed("waiting", 1011), offline), {text: words.offline});
  assert.deepEqual(bannerOf(closed("waiting", 1011), online), {text: words.lost});
  assert.deepEqual(bannerOf(closed("waiting", 4429), online), {text: words.pauses[4429]});
});

test("a banner names what ended the connection, and offers what helps", () => {
  /** @param {number | "refused"} code */
  const ended = (code) => bannerOf(closed("ended", code), online);
  assert.deepEqual(ended(4401), {text: words.ended[4401], action: words.signIn});
  assert.deepEqual(ended(4409), {text: words.ended[4409], action: words.continueHere});
  assert.deepEqual(ended(1011), {text: words.ended.other, action: words.reload});
  assert.deepEqual(ended("refused"), {text: words.ended.refused, action: words.reload});
  const details = bannerOf(closed("ended", "refused"), {isOnline: true, hasDetails: true});
  assert.equal(details.text, `${words.ended.refused} The reason.`);
});

test("a banner does not call a chat removed that a restore lost", () => {
  const lost = {...closed("ended", 4404), lost: 3};
  assert.match(bannerOf(lost, online).text, /restored from a backup.*3 messages were lost/);
  assert.equal(bannerOf({...lost, lost: 0}, online).text, words.ended[4404]);
});

test("a banner names lost messages, and the state of a live session", () => {
  const live = {state: /** @type {const} */ ("live"), ending: null, session, lost: 2};
  assert.match(bannerOf(live, online).text, /2 messages were lost/);
  assert.match(bannerOf({...live, lost: null}, online).text, /Some messages were lost/);
  const archived = /** @type {SessionFrame} */ ({archived: true});
  assert.equal(bannerOf({...live, lost: 0, session: archived}, online).text, words.archived);
  const late = /** @type {SessionFrame} */ ({archived: false, live: false});
  assert.equal(bannerOf({...live, lost: 0, session: late}, online).text, words.delayed);
});
