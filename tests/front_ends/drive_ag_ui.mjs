// Pages of AG-UI, CopilotKit and TanStack AI without a browser; see lines.mjs. The clients of the packages
// validate each event.

import {createRequire} from "node:module";
import {HttpAgent} from "@ag-ui/client";
import {CopilotKitCore} from "@copilotkit/core";
import {ChatClient, fetchServerSentEvents} from "@tanstack/ai-client";
import {Network, serve, until} from "./lines.mjs";

// The client also leaves a rejected promise of its own; a browser only writes that to its console.
process.on("unhandledRejection", () => {});

// The client of AG-UI that CopilotKit brings, of another version.
const {HttpAgent: AgentOfCopilotKit} = createRequire(import.meta.resolve("@copilotkit/core"))(
  "@ag-ui/client",
);

const API = "/api/ui/ag";
const pages = new Map();

/** A page with the client of AG-UI, which has no resume: it repeats the run. */
class AgentPage {
  constructor({chat, ...where}, Agent = HttpAgent) {
    this.network = new Network(where);
    this.agent = new Agent({url: API, threadId: chat, fetch: this.network.fetch});
  }

  send({id, text, runId}) {
    this.runId = runId;
    this.agent.addMessage({id, role: "user", content: text});
    return this.run();
  }

  resume() {
    const {messages} = this.agent;
    const last = messages.findLastIndex(({role}) => role === "user");
    this.agent.setMessages(messages.slice(0, last + 1));
    return this.run();
  }

  async run() {
    this.events = [];
    this.error = null;
    const record = {onEvent: ({event}) => void this.events.push(event)};
    await this.agent.runAgent({runId: this.runId}, record).catch((error) => {
      this.error = error.message;
    });
  }

  close() {
    this.agent.abortRun();
  }

  state() {
    const types = this.events.map(({type}) => type);
    const ends = this.events.filter(({type}) => type === "RUN_FINISHED" || type === "RUN_ERROR");
    return {messages: this.agent.messages, error: this.error, types, end: ends.at(-1) ?? null};
  }

  text() {
    const {messages} = this.agent;
    const last = messages.findLastIndex(({role}) => role === "user");
    return messages.slice(last + 1).map(({role, content}) => (role === "assistant" ? content : ""));
  }
}

/** A page of CopilotKit: what its hooks and its chat call. */
class CopilotKitPage extends AgentPage {
  constructor(options) {
    super(options, AgentOfCopilotKit);
    this.core = new CopilotKitCore({agents__unsafe_dev_only: {default: this.agent}});
    this.agent.subscribe({onEvent: ({event}) => void this.events.push(event)});
    this.core.subscribe({
      onError: ({error}) => {
        this.error = error.message;
      },
    });
  }

  async run() {
    this.events = [];
    this.error = null;
    await this.core.runAgent({agent: this.agent, runId: this.runId});
  }

  close() {
    this.core.stopAgent({agent: this.agent});
  }
}

/** A page with the client of TanStack AI, which loads the history, and joins a running reply. */
class TanStackPage {
  constructor({chat, ...where}) {
    this.network = new Network(where);
    this.chat = chat;
    this.open();
  }

  open() {
    this.types = [];
    this.client = new ChatClient({
      threadId: this.chat,
      persistence: true,
      connection: fetchServerSentEvents(API, {fetchClient: this.network.fetch}),
      onChunk: ({type, usage}) => {
        this.types.push(type);
        this.usage = usage;
      },
    });
    this.client.attach();
  }

  send({id, text}) {
    this.types = [];
    return this.client.sendMessage({id, content: text});
  }

  close() {
    this.client.detach();
  }

  /** Reload the page, and wait for the history and for the end of a reply. */
  async resume() {
    this.close();
    this.open();
    const state = () => [this.network.last, this.client.getStatus?.(), this.state()];
    await until(() => this.client.getMessages().length > 0, state);
    await until(() => !this.client.getIsLoading(), state);
  }

  state() {
    const error = this.client.getError()?.message ?? null;
    const {types, usage} = this;
    return {messages: this.client.getMessages(), error, types, usage};
  }

  text() {
    const last = this.client.getMessages().at(-1);
    if (last?.role !== "assistant") return [];
    return last.parts.map(({type, content}) => (type === "text" ? content : ""));
  }
}

const CLASSES = {agent: AgentPage, copilotkit: CopilotKitPage, tanstack: TanStackPage};

async function run(action, {page, server, cutAfter, ...fields}) {
  const found = pages.get(page);
  if (server) found.network.server = server;
  found.network.cutAfter = cutAfter ?? Number.POSITIVE_INFINITY;
  await found[action](fields);
  return found.state();
}

await serve({
  open({page, kind, ...options}) {
    pages.set(page, new CLASSES[kind](options));
  },
  send: (fields) => run("send", fields),
  resume: (fields) => run("resume", fields),
  close: ({page}) => pages.get(page).close(),
  async grown({page, chars}) {
    await until(() => pages.get(page).text().join("").length >= chars);
  },
  async history({page, chat}) {
    const response = await pages.get(page).network.fetch(`${API}?threadId=${chat}`);
    if (!response.ok) throw new Error(await response.text());
    return await response.json();
  },
});
