// Finds out why websockets are refused. Loaded after several failed handshakes.

import {gettext as _, interpolate} from "../shared/language.js";

const DOCS = "docs/howto/running.md of django-chatmemory, “A page that cannot connect”";

/**
 * The status with which the server answers HTTP; null if it does not, or is down. A browser does not
 * reveal why a handshake failed: if it does, the server refuses this websocket, or a proxy does not
 * pass websockets on, and more attempts would fail too.
 *
 * @param {string} url of the websocket
 */
export async function httpStatus(url) {
  const address = new URL(url);
  address.protocol = address.protocol.replace(/^ws/, "http");
  try {
    const {status} = await fetch(address, {method: "HEAD", cache: "no-store"});
    if (status < 500) return status;
    console.warn(outageText(url, status));
    return null;
  } catch {
    return null; // no network, or another origin
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
 * Write the causes to the console, in English for developers; return the text for staff users, and
 * for all users if the cause is known.
 *
 * @param {string} url
 * @param {number} count of failed handshakes
 * @param {number} status of the answer to HTTP
 * @returns {{reason: string, message?: string}}
 */
export function reportRefusal(url, count, status) {
  if (status === 401 || status === 403) {
    console.error(`chatmemory: ${url} was refused ${count} times, and answers HTTP with status ${status}:
a gate in front of the chat refuses this person, such as middleware in asgi.py or a proxy with a login.
More: ${DOCS}.`);
    const text = _("A gate in front of the chat answers with status %(status)s.");
    return {
      reason: `${interpolate(text, {status})} (${url})`,
      message: _("You do not have permission to chat here."),
    };
  }
  console.error(`chatmemory: ${url} was refused ${count} times, while the server answers HTTP. Causes:
- A gate of the project's own in asgi.py, or a proxy, refuses websockets of this person.
- A server for WSGI, such as Django's own runserver or gunicorn without a worker class, serves no
  websockets: install the extra "daphne" and put "daphne" first in INSTALLED_APPS, or use uvicorn.
- asgi.py must route "websocket" to chatmemory.routing.websocket_urlpatterns.
- A proxy must forward the headers Upgrade and Connection.
- If the site is below a URL prefix, the address above must begin with it: see FORCE_SCRIPT_NAME.
- CHATMEMORY["ALLOWED_ORIGINS"] and ALLOWED_HOSTS must allow ${globalThis.location?.origin}.
"manage.py check" finds the second and third; the log of the server names a refused origin.
More: ${DOCS}.`);
  const text = _(
    "The server answers, but refuses this websocket, and a browser does not reveal why. The browser's " +
      "console lists the causes; “manage.py check” finds the most frequent ones.",
  );
  return {reason: `${text} (${url})`};
}
