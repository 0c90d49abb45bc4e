// The language of the page: texts of Django's JavaScriptCatalog, if the page has loaded one before,
// else those in English; numbers and times as the language writes them.

/** @type {{django?: {gettext?: (text: string) => string, ngettext?: (one: string, many: string, count: number) => string}}} */
const {django} = /** @type {any} */ (globalThis);

/** @param {string} text */
export const gettext = (text) => django?.gettext?.(text) ?? text;

/**
 * The text for a count, by the plural rule of the language. The text contains it as `%(count)s`.
 *
 * @param {string} one
 * @param {string} many
 * @param {number} count
 */
export function ngettext(one, many, count) {
  const text = django?.ngettext?.(one, many, count) ?? (count === 1 ? one : many);
  return interpolate(text, {count});
}

/**
 * Replace each `%(name)s` by its value.
 *
 * @param {string} text
 * @param {Record<string, string | number>} values
 */
export function interpolate(text, values) {
  return text.replace(/%\((\w+)\)s/g, (_, name) =>
    values[name].toLocaleString(languageOf(globalThis.document?.documentElement)),
  );
}

/**
 * The language of a node for numbers and times; undefined for that of the browser.
 *
 * @param {Element | undefined} node
 */
export function languageOf(node) {
  try {
    return Intl.getCanonicalLocales(node?.closest("[lang]")?.getAttribute("lang") ?? [])[0];
  } catch {
    return undefined; // not a language tag
  }
}
