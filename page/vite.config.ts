import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { gzipSync } from "node:zlib";
import preact from "@preact/preset-vite";
import { defineConfig, type Plugin } from "vite";

const BUILT = "../src/rondo/gateway/static";
// Largest transfers in bytes: shell and playground, and the whole page.
const FIRST_LIMIT = 150_000;
const WHOLE_LIMIT = 300_000;

// Stores each file compressed as well, and fails if the page has become too large.
function compressed(): Plugin {
  return {
    name: "compressed",
    apply: "build",
    closeBundle() {
      let first = 0;
      let whole = 0;
      for (const folder of [BUILT, join(BUILT, "assets")]) {
        for (const name of readdirSync(folder)) {
          if (!/\.(html|js|css|svg)$/.test(name)) continue;
          const data = gzipSync(readFileSync(join(folder, name)), { level: 9 });
          writeFileSync(join(folder, `${name}.gz`), data);
          whole += data.length;
          if (!/^(chart|engines|evals|jobs|keys|list|logs?|models|queue|responses|rl|usage)/.test(name)) first += data.length;
        }
      }
      console.log(`transfer: ${first} bytes for shell and playground, ${whole} bytes for the whole page`);
      if (first > FIRST_LIMIT || whole > WHOLE_LIMIT) {
        throw new Error(`The page is too large: at most ${FIRST_LIMIT} and ${WHOLE_LIMIT} bytes.`);
      }
    },
  };
}

// The gateway serves the built files; in development Vite passes API calls to it.
export default defineConfig({
  plugins: [preact(), compressed()],
  build: {
    outDir: BUILT,
    emptyOutDir: true,
    assetsInlineLimit: 0,
    rollupOptions: { output: { chunkFileNames: (chunk) => `assets/${viewOf(chunk.facadeModuleId) ?? chunk.name}-[hash].js` } },
  },
  server: { proxy: { "/v1": process.env.RONDO_URL ?? "http://127.0.0.1:8000" } },
});

function viewOf(module: string | null): string | undefined {
  return module?.match(/src\/(\w+)\/view\.tsx$/)?.[1];
}
