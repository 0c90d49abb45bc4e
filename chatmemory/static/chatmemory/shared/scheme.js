// Applies the color scheme that was chosen in this browser, before the page is drawn.
{
  const apply = () => {
    document.documentElement.dataset.scheme = localStorage.getItem("chatmemory:scheme") ?? "";
  };
  try {
    apply();
    addEventListener("storage", apply);
  } catch {
    // No storage: the scheme of the system.
  }
}
