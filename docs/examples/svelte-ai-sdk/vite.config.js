import {svelte} from "@sveltejs/vite-plugin-svelte";

const target = process.env.DJANGO ?? "http://127.0.0.1:8000";

// Without this, Vite leaves a stream open when Django restarts, and the page waits for its rest.
function breakLostStreams(proxy) {
  proxy.on("proxyRes", (response, _, page) => {
    response.on("close", () => response.complete || page.destroy());
  });
}

// Django compares the Origin of a POST with the Host, so keep the host of the browser.
const options = {target, changeOrigin: false, configure: breakLostStreams};
const proxy = {"^/(api|accounts|chat|static)/": options};

export default {
  plugins: [svelte()],
  server: {proxy},
  preview: {proxy},
};
