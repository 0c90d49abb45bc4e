import {DefaultChatTransport} from "ai";

const API = "/api/ui/chat";

// The chat's id is in the page's address, so a reload opens the same chat.
export const chatId = location.hash.slice(1) || crypto.randomUUID();
location.hash = chatId;

const headers = () => ({"X-CSRFToken": document.cookie.match(/csrftoken=([^;]+)/)?.[1] ?? ""});

// While the network fails, try again: the server stores a repeated message once.
const patientFetch = (...request) =>
  fetch(...request).catch(async (error) => {
    if (error.name === "AbortError") throw error;
    await new Promise((done) => setTimeout(done, 2000));
    return patientFetch(...request);
  });

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
  const response = await fetch(`${API}/${chatId}/messages`);
  if (response.status === 401) location.assign(`/accounts/login/?next=/%23${chatId}`);
  return response.ok ? response.json() : [];
}

// The hook's stop() ends only the request; the server would continue the reply.
export const stopReply = () => fetch(`${API}/${chatId}/stop`, {method: "POST", headers: headers()});
