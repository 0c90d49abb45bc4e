/**
 * Keeps what an operator types in a form with `data-draft` until the server has accepted the form,
 * so that it is not lost if the login has expired. Only in the storage of the tab; each draft
 * belongs to the operator whom `data-draft` names. The forms work without this file.
 */

const PREFIX = "chatmemory:draft:";

/** Not the number that confirms an action. A select, since it gives a typed number its meaning. */
const FIELDS = "input[type=text], textarea, select";

/**
 * @typedef {object} Draft
 * @property {string} [sentFrom] the page from which the form was submitted
 * @property {Record<string, string>} values
 */

/** @param {string} address */
function pathOf(address) {
  const url = new URL(address, location.href);
  return url.pathname + url.search;
}

/** @param {HTMLFormElement} form */
function keyOf(form) {
  return `${PREFIX}${form.dataset.draft}:${pathOf(form.getAttribute("action") ?? location.href)}`;
}

/** @param {HTMLFormElement} form */
function fieldsOf(form) {
  return /** @type {NodeListOf<HTMLInputElement | HTMLTextAreaElement | HTMLSelectElement>} */ (
    form.querySelectorAll(FIELDS)
  );
}

/**
 * @param {HTMLFormElement} form
 * @param {string} [sentFrom]
 */
function save(form, sentFrom) {
  const values = Object.fromEntries([...fieldsOf(form)].map(({name, value}) => [name, value]));
  /** @type {Draft} */
  const draft = {values, sentFrom};
  sessionStorage.setItem(keyOf(form), JSON.stringify(draft));
}

/** @param {HTMLFormElement} form */
function restore(form) {
  const stored = sessionStorage.getItem(keyOf(form));
  if (!stored) return;
  /** @type {Draft} */
  const {values} = JSON.parse(stored);
  for (const field of fieldsOf(form)) field.value = values[field.name] ?? field.value;
}

/** @param {(key: string, draft: Draft) => boolean} isOver */
function remove(isOver) {
  for (const key of Object.keys(sessionStorage)) {
    if (!key.startsWith(PREFIX)) continue;
    if (isOver(key, JSON.parse(sessionStorage.getItem(key) ?? ""))) sessionStorage.removeItem(key);
  }
}

/**
 * @param {HTMLFormElement[]} forms
 * @param {string} operator
 */
function start(forms, operator) {
  const cameFrom = document.referrer && pathOf(document.referrer);
  remove((key, {sentFrom}) => {
    // The page that answers a form was not reached through the login.
    const isAnswered = sentFrom !== undefined && ["", sentFrom].includes(cameFrom);
    const isOfOther = !key.startsWith(`${PREFIX}${operator}:`);
    return isAnswered || isOfOther;
  });
  for (const form of forms) {
    restore(form);
    form.addEventListener("input", () => save(form));
    form.addEventListener("submit", () => save(form, pathOf(location.href)));
    form.querySelector("a.closelink")?.addEventListener("click", () => {
      sessionStorage.removeItem(keyOf(form));
    });
  }
  document.getElementById("logout-form")?.addEventListener("submit", () => remove(() => true));
}

const page = document.querySelector("[data-operator]");
try {
  start(
    [.../** @type {NodeListOf<HTMLFormElement>} */ (document.querySelectorAll("form[data-draft]"))],
    page?.getAttribute("data-operator") ?? "",
  );
} catch {
  // No storage.
}

export {};
