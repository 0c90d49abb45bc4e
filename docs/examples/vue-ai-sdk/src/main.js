import {createApp} from "vue";
import Chat from "./Chat.vue";
import {loadHistory} from "./server.js";

createApp(Chat, {history: await loadHistory()}).mount("#root");
