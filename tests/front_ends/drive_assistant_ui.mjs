// Pages of assistant-ui without a browser; see lines.mjs. React renders them into a DOM of Node.js.

import {useChat} from "@ai-sdk/react";
import {AssistantRuntimeProvider} from "@assistant-ui/react";
import {useAISDKRuntime} from "@assistant-ui/react-ai-sdk";
import {DefaultChatTransport} from "ai";
import {Window} from "happy-dom";
import {createElement} from "react";
import {Network, serve, until} from "./lines.mjs";

globalThis.window = new Window({url: "http://127.0.0.1/"});
globalThis.document = window.document;
globalThis.navigator ??= window.navigator;
const {createRoot} = await import("react-dom/client");

const API = "/api/ui/chat";
const pages = new Map();

function App({page, history}) {
  const chat = useChat({id: page.id, messages: history, resume: true, transport: page.transport});
  const runtime = useAISDKRuntime(chat);
  Object.assign(page, {chat, runtime});
  return createElement(AssistantRuntimeProvider, {runtime});
}

class Page {
  constructor({chat, ...where}) {
    this.id = chat;
    this.network = new Network(where);
    this.transport = new DefaultChatTransport({api: API, fetch: this.network.fetch});
  }

  async mount() {
    const response = await this.network.fetch(`${API}/${this.id}/messages`);
    const history = response.ok ? await response.json() : [];
    this.root = createRoot(document.createElement("div"));
    this.root.render(createElement(App, {page: this, history}));
    await until(() => this.runtime);
  }

  async reload() {
    this.root.unmount();
    this.runtime = null;
    await this.mount();
    await this.ended();
  }

  async ended() {
    // A stream begins after the call, so the page must be idle for a moment.
    for (let idle = 0; idle < 20; idle = this.chat.status === "ready" ? idle + 1 : 0)
      await new Promise((done) => setTimeout(done, 20));
  }

  state() {
    const {messages, isRunning} = this.runtime.thread.getState();
    return {messages, isRunning, error: this.chat.error?.message ?? null};
  }

  text() {
    const last = this.runtime.thread.getState().messages.at(-1);
    const texts = last?.content.map(({type, text}) => (type === "text" ? text : ""));
    return last?.role === "assistant" ? texts.join("") : "";
  }
}

async function run(name, action) {
  const page = pages.get(name);
  await action(page);
  await page.ended();
  return page.state();
}

await serve({
  async open({page, ...options}) {
    pages.set(page, new Page(options));
    await pages.get(page).mount();
  },
  send: ({page, text}) =>
    run(page, ({runtime}) =>
      runtime.thread.append({role: "user", content: [{type: "text", text}]}),
    ),
  regenerate: ({page}) =>
    run(page, ({runtime}) => {
      const {messages} = runtime.thread.getState();
      runtime.thread.startRun({parentId: messages.at(-2).id});
    }),
  reload: ({page}) => run(page, (found) => found.reload()),
  state: ({page}) => pages.get(page).state(),
  async stop({page}) {
    const {id, network} = pages.get(page);
    const headers = {"Content-Type": "application/json"};
    const request = {method: "POST", headers, body: "{}"};
    return await (await network.fetch(`${API}/${id}/stop`, request)).json();
  },
  async grown({page, chars}) {
    await until(() => pages.get(page).text().length >= chars);
  },
});
