import preact from "@preact/preset-vite";
import { defineConfig } from "vite";

// The gateway serves the built files; in development Vite passes API calls to it.
export default defineConfig({
  plugins: [preact()],
  build: { outDir: "../src/rondo/gateway/static", emptyOutDir: true, assetsInlineLimit: 0 },
  server: { proxy: { "/v1": process.env.RONDO_URL ?? "http://127.0.0.1:8000" } },
});
