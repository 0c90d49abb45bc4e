import {fetchServerSentEvents, useChat} from "@tanstack/ai-react";
import {createRoot} from "react-dom/client";

const API = `${import.meta.env.VITE_API ?? "/chat/api"}/ui`;

// The chat's id is in the page's address, so a reload opens the same chat.
const threadId = location.hash.slice(1) || crypto.randomUUID();
location.hash = threadId;

const headers = () => ({
  "Content-Type": "application/json",
  "X-CSRFToken": document.cookie.match(/csrftoken=([^;]+)/)?.[1] ?? "",
});

async function fetchClient(url, options) {
  const response = await fetch(url, options);
  if (response.status === 401) location.assign(`/accounts/login/?next=/%23${threadId}`);
  return response;
}

const connection = fetchServerSentEvents(`${API}/ag`, () => ({headers: headers(), fetchClient}));

// The hook's stop() ends only the request; the server would continue the reply.
const stopReply = () =>
  fetch(`${API}/chat/${threadId}/stop`, {method: "POST", headers: headers(), body: "{}"});

function Part({part}) {
  if (part.type === "text") return <p>{part.content}</p>;
  if (part.type === "thinking") return <p className="reasoning">{part.content}</p>;
  if (part.type === "tool-call") return <pre>{`${part.name}: ${part.arguments}`}</pre>;
  if (part.type === "tool-result") return <pre>{part.content}</pre>;
}

function Chat() {
  // With `persistence`, the hook loads the history, and joins a reply that is being written.
  const {messages, sendMessage, isLoading, error, queue} = useChat({
    threadId,
    persistence: true,
    connection,
  });
  return (
    <main>
      {messages.map(({id, role, parts}) => (
        <article key={id} data-role={role}>
          {parts.map((part, index) => (
            <Part key={index} part={part} />
          ))}
        </article>
      ))}
      {queue.length > 0 && <p>Waiting: {queue.length}</p>}
      {error && <p role="alert">{error.message}</p>}
      <form action={(form) => void sendMessage(form.get("text"))}>
        <input name="text" aria-label="Message" autoComplete="off" required />
        <button type="submit">Send</button>
        <button type="button" disabled={!isLoading} onClick={stopReply}>
          Stop
        </button>
      </form>
    </main>
  );
}

createRoot(document.getElementById("root")).render(<Chat />);
