import react from "@vitejs/plugin-react";

const target = process.env.DJANGO ?? "http://127.0.0.1:8000";
// Django compares the Origin of a POST with the Host, so keep the host of the browser.
const proxy = {"^/(api|accounts|chat|static)/": {target, changeOrigin: false}};

export default {
  plugins: [react()],
  server: {proxy},
  preview: {proxy},
};
