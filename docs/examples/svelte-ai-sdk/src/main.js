import {mount} from "svelte";
import Chat from "./Chat.svelte";
import {loadHistory} from "./server.js";

mount(Chat, {target: document.getElementById("root"), props: {history: await loadHistory()}});
