import {useChat} from "@ai-sdk/react";
import {createRoot} from "react-dom/client";
import {chatId, loadHistory, stopReply, transport} from "./server.js";

const isWaiting = ({metadata}) => metadata?.status === "waiting";

function Part({type, text, data, toolName, input, output}) {
  switch (type) {
    case "text":
    case "reasoning":
      return <p className={type}>{text}</p>;
    case "dynamic-tool":
      return <pre>{`${toolName}: ${JSON.stringify(output ?? input)}`}</pre>;
    case "data-queue":
      return data.place > 0 && <p>Waiting, place {data.place}</p>;
  }
}

function Chat({history}) {
  const {messages, sendMessage, setMessages, resumeStream, status, error} = useChat({
    id: chatId,
    messages: history,
    resume: true,
    transport,
    onFinish: async ({isDisconnect, messages}) => {
      // After a reload, messages that wait are answered one after the other.
      if (messages.some(isWaiting)) setMessages(await loadHistory());
      else if (!isDisconnect) return;
      resumeStream();
    },
  });
  const isBusy = ["submitted", "streaming"].includes(status);

  return (
    <main>
      {messages.map((message) => (
        <article key={message.id} data-role={message.role}>
          {message.parts.map((part, index) => (
            <Part key={index} {...part} />
          ))}
          {isWaiting(message) && <p>Waiting</p>}
        </article>
      ))}
      {error && <p role="alert">{error.message}</p>}
      <form action={(form) => void sendMessage({text: form.get("text")})}>
        <input name="text" aria-label="Message" autoComplete="off" required />
        <button type="submit">Send</button>
        <input type="button" value="Stop" disabled={!isBusy} onClick={stopReply} />
      </form>
    </main>
  );
}

createRoot(document.getElementById("root")).render(<Chat history={await loadHistory()} />);
