import assert from "node:assert/strict";
import {test} from "node:test";
import {
  partsOf,
  problemText,
  withoutSigns,
} from "../../chatmemory/static/chatmemory/list/snippet.js";

/** @param {{text: string, isFound: boolean}[]} parts */
const shown = (parts) => parts.map(({text, isFound}) => (isFound ? `[${text}]` : text)).join("");

test("the found words of a snippet are its ranges in code points", () => {
  assert.equal(
    shown(
      partsOf("🦫🦫 a marmot, marmot!", [
        [5, 11],
        [13, 19],
      ]),
    ),
    "🦫🦫 a [marmot], [marmot]!",
  );
  assert.equal(shown(partsOf("marmot", [[0, 6]])), "[marmot]");
});

test("a snippet keeps its text whatever the ranges are", () => {
  for (const ranges of [[], [[0, 0]], [[0, 99]], [[99, 100]]]) {
    const parts = partsOf("<b>x</b>", ranges);
    assert.equal(parts.map(({text}) => text).join(""), "<b>x</b>", JSON.stringify(ranges));
  }
  assert.deepEqual(partsOf("", []), []);
});

test("a reply is shown without stars, ticks and the lines of a table", () => {
  assert.equal(withoutSigns("**Order** `48213`: - a 2*3"), "Order 48213: - a 2*3");
  assert.equal(
    withoutSigns("have: | a | b | |---|:-:| | seal | free |"),
    "have: · a · b · seal · free · ",
  );
  assert.equal(withoutSigns("a plain text - with: signs"), "a plain text - with: signs");
});

test("a problem is explained by its code", () => {
  assert.equal(
    problemText({code: "rate_limited", retry_after: 3.2}),
    "Too many searches. Try again in 4 s.",
  );
  assert.equal(problemText({code: "refused", detail: "Confirm first."}), "Confirm first.");
  const usual = "Messages were not searched. Reload the page, and try again.";
  for (const problem of [null, {}, {code: "internal"}]) assert.equal(problemText(problem), usual);
});
