// JSON as people read it: indented. rendering/json.py does the same.

const TOKENS = /"(?:[^"\\]|\\.)*"?|\[\s*\]|\{\s*\}|[[\]{}:,]|[^\s"[\]{}:,]+/gs;
const MAX_INDENT = 20;
const MAX_GROWTH = 3;
const FREE_CHARS = 2000;

/**
 * Indent JSON, which may be truncated; return it as it is if it would grow too much.
 *
 * @param {string} text
 */
export function indented(text) {
  let depth = 0;
  const line = () => `\n${"  ".repeat(Math.min(Math.max(depth, 0), MAX_INDENT))}`;
  const longest = Math.max(FREE_CHARS, MAX_GROWTH * text.length);
  let shown = "";
  for (const [sign] of text.matchAll(TOKENS)) {
    if (sign === "{" || sign === "[") {
      depth += 1;
      shown += sign + line();
    } else if (sign === "}" || sign === "]") {
      depth -= 1;
      shown += line() + sign;
    } else if (sign === ",") shown += sign + line();
    else if (sign === ":") shown += ": ";
    else shown += "{[".includes(sign[0]) ? sign[0] + sign.slice(-1) : sign;
    if (shown.length > longest) return text;
  }
  return shown;
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
