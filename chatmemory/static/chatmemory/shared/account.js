// The menu of the account, and its switch of the color scheme, which all tabs of the browser follow.

const KEY = "chatmemory:scheme"; // also in scheme.js
const root = document.documentElement;
const menu = document.getElementById("cm-account");
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

// The style is loaded before the menu is shown for the first time.
let isStyled = false;
menu?.addEventListener("beforetoggle", async (event) => {
  if (isStyled || /** @type {ToggleEvent} */ (event).newState !== "open") return;
  event.preventDefault();
  isStyled = true;
  const module = await import("./style.js").catch(() => null);
  await module?.addStyle(document, ["shared/menu.css"]);
  menu.showPopover();
});
menu?.addEventListener("focusout", ({relatedTarget}) => {
  if (relatedTarget instanceof Node && !menu.contains(relatedTarget)) menu.hidePopover();
});
