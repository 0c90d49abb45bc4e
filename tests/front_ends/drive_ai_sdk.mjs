// Pages of the AI SDK without a browser; see lines.mjs. The chat classes, the transport and the
// readers are those of the packages: each chunk and each history is validated by them.

import {Chat as ReactChat} from "@ai-sdk/react";
import {Chat as SvelteChat} from "@ai-sdk/svelte";
import {Chat as VueChat} from "@ai-sdk/vue";
import {DefaultChatTransport, readUIMessageStream, validateUIMessages} from "ai";
import {Network, serve, until} from "./lines.mjs";

const API = "/api/ui/chat";
const CLASSES = {react: ReactChat, queue: ReactChat, svelte: SvelteChat, vue: VueChat};
const pages = new Map();

class RecordingTransport extends DefaultChatTransport {
  types = [];

  processResponseStream(stream) {
    const record = (chunk, controller) => {
      this.types.push(chunk.type);
      controller.enqueue(chunk);
    };
    return super
      .processResponseStream(stream)
      .pipeThrough(new TransformStream({transform: record}));
  }
}

class Page {
  constructor({chat, kind, ...where}) {
    this.id = chat;
    this.network = new Network(where);
    this.seen = "";
    this.transport = new RecordingTransport({
      api: API,
      fetch: this.network.fetch,
      prepareReconnectToStreamRequest: ({id}) => ({api: `${API}/${id}/stream${this.seen}`}),
    });
    this.chat = new CLASSES[kind]({
      id: chat,
      transport: this.transport,
      experimental_queue: kind === "queue",
      onFinish: ({message, messages, ...ending}) => {
        this.ending = ending;
      },
    });
  }

  async run(action, {server, cutAfter, seen}) {
    if (server) this.network.server = server;
    this.network.cutAfter = cutAfter ?? Number.POSITIVE_INFINITY;
    this.seen = seen ? `?seen=${encodeURIComponent(seen)}` : "";
    this.transport.types = [];
    this.ending = null;
    await action();
    return this.state();
  }

  state() {
    const {messages, status, error} = this.chat;
    const {types} = this.transport;
    return {messages, status, error: error?.message ?? null, ending: this.ending, types};
  }

  text() {
    const last = this.chat.messages.at(-1);
    const texts = last?.parts.filter(({type}) => type === "text").map(({text}) => text);
    return last?.role === "assistant" ? texts.join("") : "";
  }

  async history(query) {
    const response = await this.network.fetch(`${API}/${this.id}/messages${query}`);
    if (!response.ok) throw new Error(await response.text());
    const messages = await response.json();
    return messages.length ? await validateUIMessages({messages}) : [];
  }

  async post(path, body) {
    const headers = {"Content-Type": "application/json"};
    const request = {method: "POST", headers, body: JSON.stringify(body)};
    const response = await this.network.fetch(`${API}/${this.id}/${path}`, request);
    return {status: response.status, answer: await response.json()};
  }
}

await serve({
  open({page, ...options}) {
    pages.set(page, new Page(options));
  },
  send({page, id, text, body, ...how}) {
    const message = {id, role: "user", parts: [{type: "text", text}]};
    const {chat} = pages.get(page);
    return pages.get(page).run(() => chat.sendMessage(message, {body}), how);
  },
  edit({page, messageId, text, body, ...how}) {
    const {chat} = pages.get(page);
    return pages.get(page).run(() => chat.sendMessage({text, messageId}, {body}), how);
  },
  regenerate({page, messageId, body, ...how}) {
    const {chat} = pages.get(page);
    return pages.get(page).run(() => chat.regenerate({messageId, body}), how);
  },
  resume({page, ...how}) {
    return pages.get(page).run(() => pages.get(page).chat.resumeStream(), how);
  },
  async load({page}) {
    pages.get(page).chat.messages = await pages.get(page).history("");
    return pages.get(page).state();
  },
  state: ({page}) => pages.get(page).state(),
  history: ({page, query = ""}) => pages.get(page).history(query),
  stop: ({page, body = {}}) => pages.get(page).post("stop", body),
  close: ({page}) => pages.get(page).chat.stop(),
  async grown({page, chars}) {
    await until(() => pages.get(page).text().length >= chars);
  },
  async watch({page}) {
    const {id, transport} = pages.get(page);
    const stream = await transport.reconnectToStream({chatId: id});
    let last = null;
    for await (const message of readUIMessageStream({stream, terminateOnError: true}))
      last = message;
    return last;
  },
});
