// Finds out why websockets are refused. Loaded after several failed handshakes.

import {gettext as _} from "../shared/language.js";

const DOCS = "docs/running.md of django-chatmemory, “A page that cannot connect”";

/**
 * Whether the server answers HTTP. A browser does not reveal why a handshake failed: then the server
 * refuses this websocket, or a proxy does not pass websockets on, and more attempts would fail too.
 *
 * @param {string} url of the websocket
 */
export async function isHttpServed(url) {
  const address = new URL(url);
  address.protocol = address.protocol.replace(/^ws/, "http");
  try {
    const {status} = await fetch(address, {method: "HEAD", cache: "no-store"});
    if (status < 500) return true;
    console.warn(outageText(url, status));
    return false;
  } catch {
    return false; // no network, or another origin
  }
}

/**
 * For developers, so it is not translated.
 *
 * @param {string} url
 * @param {number} status
 */
function outageText(url, status) {
  return `chatmemory: ${url} is answered with status ${status}. The chat tries again.
- The server of the chat is down, overloaded or starting, or its application raises an error: see its log.
- If other pages work, a proxy forwards websockets to a wrong address: see its configuration and log.
More: ${DOCS}.`;
}

/**
 * Write the causes to the console, in English for developers; return the text for staff users.
 *
 * @param {string} url
 * @param {number} count of failed handshakes
 */
export function reportRefusal(url, count) {
  console.error(`chatmemory: ${url} was refused ${count} times, while the server answers HTTP.
- A server for WSGI, such as Django's own runserver or gunicorn without a worker class, serves no
  websockets: install the extra "daphne" and put "daphne" first in INSTALLED_APPS, or use uvicorn.
- asgi.py must route "websocket" to chatmemory.routing.websocket_urlpatterns.
- A proxy must forward the headers Upgrade and Connection.
- If the site is below a URL prefix, the address above must begin with it: see FORCE_SCRIPT_NAME.
- CHATMEMORY["ALLOWED_ORIGINS"] and ALLOWED_HOSTS must allow ${globalThis.location?.origin}.
"manage.py check" finds the first two; the log of the server names a refused origin.
More: ${DOCS}.`);
  const text = _(
    "The server answers, but refuses websockets: it needs an ASGI server such as daphne, and a route " +
      "in asgi.py. The browser's console lists the causes; “manage.py check” finds the most frequent ones.",
  );
  return `${text} (${url})`;
}
