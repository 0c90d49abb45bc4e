import assert from "node:assert/strict";
import {test} from "node:test";

import {
  formatted,
  formattedArgs,
  indented,
} from "../../chatmemory/static/chatmemory/element/json.js";

test("a JSON object or list is indented without a change of its values", () => {
  assert.equal(
    formatted('{"a":[1.50,{}],"b":"x: [y]"}'),
    '{\n  "a": [\n    1.50,\n    {}\n  ],\n  "b": "x: [y]"\n}',
  );
  assert.equal(formatted(" [ 12345678901234567890 ]"), "[\n  12345678901234567890\n]");
});

test("another text remains as it is", () => {
  for (const text of ["rain", "1", "[1] see below", '{"a": ', ""])
    assert.equal(formatted(text), text);
});

test("truncated arguments are indented too", () => {
  assert.equal(formattedArgs('{"a":"say \\"hi\\", {you', true), '{\n  "a": "say \\"hi\\", {you');
  assert.equal(formattedArgs("city: Lisboa", true), "city: Lisboa");
});

test("JSON that would grow too much remains as it is", () => {
  const list = `${"1,".repeat(5000)}1`;
  for (const depth of [20, 400]) {
    const text = "[".repeat(depth) + list + "]".repeat(depth);
    assert.equal(formatted(text), text);
  }
  assert.equal(formatted("[".repeat(30) + "]".repeat(30)).split("\n").length, 59);
});

test("the indentation of deep JSON is limited", () => {
  assert.equal(
    Math.max(
      ...indented("[".repeat(40))
        .split("\n")
        .map(({length}) => length),
    ),
    41,
  );
  assert.equal(indented("]"), "\n]");
});
