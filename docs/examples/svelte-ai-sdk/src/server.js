import {DefaultChatTransport} from "ai";

const API = `${import.meta.env.VITE_API ?? "/chat/api"}/ui/chat`;

// The chat's id is in the page's address, so a reload opens the same chat.
export const chatId = location.hash.slice(1) || crypto.randomUUID();
location.hash = chatId;

const headers = () => ({
  "Content-Type": "application/json",
  "X-CSRFToken": document.cookie.match(/csrftoken=([^;]+)/)?.[1] ?? "",
});

// While the server cannot be reached, try again: it stores a repeated message once.
async function patientFetch(url, options) {
  for (;;) {
    const response = await fetch(url, options).catch(() => null);
    // Vite answers 500 for a server that does not run, other proxies 502 to 504.
    if (response && ![500, 502, 503, 504].includes(response.status)) return response;
    options.signal?.throwIfAborted();
    await new Promise((done) => setTimeout(done, 2000));
  }
}

export const transport = new DefaultChatTransport({
  api: API,
  headers,
  fetch: patientFetch,
  // The server has the history, so the last message is enough.
  prepareSendMessagesRequest: ({id, messages, trigger, messageId}) => ({
    body: {id, messages: messages.slice(-1), trigger, messageId, requestId: crypto.randomUUID()},
  }),
});

export async function loadHistory() {
  const response = await patientFetch(`${API}/${chatId}/messages`, {});
  if (response.status === 401) location.assign(`/accounts/login/?next=/%23${chatId}`);
  return response.ok ? response.json() : [];
}

// The stop() of useChat ends only the request; the server would continue the reply.
export const stopReply = () =>
  fetch(`${API}/${chatId}/stop`, {method: "POST", headers: headers(), body: "{}"});
