// The switch of the color scheme. All tabs of the browser follow it.

const KEY = "chatmemory:scheme"; // also in scheme.js
const root = document.documentElement;
const select = document.getElementById("cm-scheme");

if (select instanceof HTMLSelectElement) {
  const show = () => {
    select.value = root.dataset.scheme ?? "";
  };
  select.addEventListener("change", () => {
    root.dataset.scheme = select.value;
    try {
      localStorage.setItem(KEY, select.value);
    } catch {
      // No storage: the choice ends with the page.
    }
  });
  addEventListener("storage", show); // after the listener of scheme.js
  addEventListener("pageshow", show); // a browser restores controls of an earlier visit
  show();
  /** @type {HTMLElement} */ (select.parentElement).hidden = false;
}
