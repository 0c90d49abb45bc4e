/**
 * The page of a running job in the admin: updates its progress, and loads the page again when the
 * job has ended. Without JavaScript, the page reloads itself.
 */

import {parse} from "../shared/html.js";

const SECONDS = 2;

/** The part of the page that changes while the job runs. */
const ID = "chatmemory-progress";

async function update() {
  const response = await fetch(location.href);
  const page = parse(await response.text());
  const shown = document.getElementById(ID);
  const found = page.getElementById(ID);
  // The job has ended, or the operator has been logged out.
  if (!shown || !found) location.reload();
  else shown.replaceWith(document.importNode(found, true));
}

async function watch() {
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, SECONDS * 1000));
    await update().catch(() => undefined); // The server restarts: try again.
  }
}

watch();
