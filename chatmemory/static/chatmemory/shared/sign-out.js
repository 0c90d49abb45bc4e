// Removes what this browser keeps of a person, such as drafts, when the person signs out.

const KEPT = "chatmemory:scheme";

function clear() {
  try {
    for (const storage of [sessionStorage, localStorage])
      for (const key of Object.keys(storage))
        if (key.startsWith("chatmemory:") && key !== KEPT) storage.removeItem(key);
  } catch {
    // no storage
  }
}

document.getElementById("cm-sign-out")?.addEventListener("submit", () => {
  clear();
  addEventListener("pagehide", clear); // the page may store something until then
});
