import {useChat} from "@ai-sdk/react";
import {createRoot} from "react-dom/client";
import {chatId, loadHistory, stopReply, transport} from "./server.js";

function Part({part}) {
  if (part.type === "text") return <p>{part.text}</p>;
  if (part.type === "reasoning") return <p className="reasoning">{part.text}</p>;
  if (part.type === "data-queue") return <p>Waiting: {JSON.stringify(part.data)}</p>;
  if (part.type !== "dynamic-tool") return null;
  return <pre>{`${part.toolName}: ${JSON.stringify(part.output ?? part.input)}`}</pre>;
}

function Chat({history}) {
  const {messages, sendMessage, resumeStream, status, error} = useChat({
    id: chatId,
    messages: history,
    resume: true,
    transport,
    onFinish: ({isDisconnect}) => isDisconnect && resumeStream(),
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
      {error && <p role="alert">{error.message}</p>}
      <form action={(form) => void sendMessage({text: form.get("text")})}>
        <input name="text" aria-label="Message" autoComplete="off" required />
        <button type="submit">Send</button>
        <button type="button" disabled={status === "ready"} onClick={stopReply}>
          Stop
        </button>
      </form>
    </main>
  );
}

const history = await loadHistory();
createRoot(document.getElementById("root")).render(<Chat history={history} />);
