// Chromium, and what every page of a test is checked for.
import { mkdir, readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { chromium } from "playwright-core";

const AXE = createRequire(import.meta.url).resolve("axe-core/axe.min.js");
const FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"];
const SLOWNESS = Number(process.env.TEST_SLOWNESS ?? 4);
const WAIT_MS = 30_000 * SLOWNESS;
// A job imports the trainer and trains.
export const SLOW = { timeout: 150_000 * SLOWNESS };

export class Browser {
  outside = [];
  broken = [];
  pictures = process.env.RONDO_SCREENSHOTS;

  constructor(chromium, url, axe) {
    Object.assign(this, { chromium, url, axe });
  }

  static async start(url) {
    const executablePath = process.env.CHROMIUM ?? "/usr/bin/chromium";
    return new Browser(await chromium.launch({ executablePath, args: FLAGS }), url, await readFile(AXE, "utf8"));
  }

  async open({ key, ...options } = {}) {
    const context = await this.chromium.newContext({ permissions: ["clipboard-read", "clipboard-write"], reducedMotion: "reduce", ...options });
    const page = await context.newPage();
    page.setDefaultTimeout(WAIT_MS);
    page.on("pageerror", (error) => this.broken.push(error.message));
    page.on("console", (message) => /Content Security|Refused to/.test(message.text()) && this.broken.push(message.text()));
    page.on("request", (request) => /^(data:|blob:)/.test(request.url()) || request.url().startsWith(this.url) || this.outside.push(request.url()));
    if (key) await page.addInitScript((text) => sessionStorage.getItem("rondo-key") ?? sessionStorage.setItem("rondo-key", text), key);
    await page.goto(this.url);
    return page;
  }

  // Accessibility of what is shown, in both themes.
  async checkAccess(page, name) {
    await page.evaluate(this.axe);
    for (const theme of ["light", "dark"]) {
      // Colours alone differ between the themes.
      const found = await page.evaluate(async (theme) => {
        const before = document.documentElement.dataset.theme;
        document.documentElement.dataset.theme = theme;
        await new Promise((done) => setTimeout(done, 200));
        const result = await axe.run({ runOnly: theme === "dark" ? { type: "rule", values: ["color-contrast", "link-in-text-block"] } : ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"] });
        document.documentElement.dataset.theme = before;
        return result.violations.map((each) => `${each.id}: ${each.help}: ${each.nodes.map((node) => node.html.slice(0, 200)).join(" | ")}`);
      }, theme);
      if (found.length) throw new Error(`${name}, ${theme}: ${found.join("\n")}`);
    }
    await this.picture(page, name);
  }

  async picture(page, name) {
    if (!this.pictures) return;
    await new Promise((done) => setTimeout(done, 200));
    await mkdir(this.pictures, { recursive: true });
    await page.screenshot({ path: `${this.pictures}/${name}.png` });
  }
}

export function expect(condition, message) {
  if (!condition) throw new Error(message);
}

export async function eventually(condition, message) {
  for (const begun = Date.now(); Date.now() - begun < WAIT_MS; ) {
    if (await condition()) return;
    await new Promise((done) => setTimeout(done, 100));
  }
  throw new Error(message);
}
