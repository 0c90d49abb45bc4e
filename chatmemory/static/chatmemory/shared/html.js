// The only code that parses HTML, also on pages that require Trusted Types.

const {trustedTypes} = /** @type {any} */ (globalThis);
const policy = trustedTypes?.createPolicy("chatmemory", {createHTML: String});

/** @param {string} html of these scripts or of the server, never a text of a person or model */
export function parse(html) {
  const template = document.createElement("template");
  template.innerHTML = policy?.createHTML(html) ?? html;
  return template.content;
}
