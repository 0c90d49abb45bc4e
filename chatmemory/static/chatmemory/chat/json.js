// JSON as people read it: indented. The values stay as they are written; rendering/json.py does the same.

const TOKENS = /"(?:[^"\\]|\\.)*"?|\[\s*\]|\{\s*\}|[[\]{}:,]|[^\s"[\]{}:,]+/gs;
const MAX_INDENT = 20;

/**
 * Indent JSON, which may be truncated; the text of strings and numbers stays as it is.
 *
 * @param {string} text
 */
export function indented(text) {
  let depth = 0;
  const line = () => `\n${"  ".repeat(Math.min(Math.max(depth, 0), MAX_INDENT))}`;
  const parts = [];
  for (const sign of text.match(TOKENS) ?? []) {
    if (sign === "{" || sign === "[") {
      depth += 1;
      parts.push(sign, line());
    } else if (sign === "}" || sign === "]") {
      depth -= 1;
      parts.push(line(), sign);
    } else if (sign === ",") parts.push(sign, line());
    else if (sign === ":") parts.push(": ");
    else parts.push("{[".includes(sign[0]) ? sign[0] + sign.slice(-1) : sign);
  }
  return parts.join("");
}

/**
 * Indent a text if it is a JSON object or list.
 *
 * @param {string} text
 */
export function formatted(text) {
  if (!/^\s*[{[]/.test(text)) return text;
  try {
    JSON.parse(text);
  } catch {
    return text;
  }
  return indented(text);
}

/**
 * Indent the arguments of a call, unless the model wrote something else than JSON.
 *
 * @param {string} args
 * @param {boolean} isCut
 */
export function formattedArgs(args, isCut) {
  return isCut && args.startsWith("{") ? indented(args) : formatted(args);
}
