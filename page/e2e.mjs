// Drives the page in Chromium as a person would: node e2e.mjs URL [KEY]. Prints one line per check; fails at the first.
import { mkdir } from "node:fs/promises";
import { chromium } from "playwright-core";

const [url, key] = process.argv.slice(2);
const pictures = process.env.RONDO_SCREENSHOTS;
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"],
});
const outside = [];
const broken = [];

async function open(options = {}) {
  const page = await browser.newPage(options);
  page.setDefaultTimeout(120_000);
  page.on("pageerror", (error) => broken.push(error.message));
  page.on("console", (message) => message.text().includes("Content Security") && broken.push(message.text()));
  page.on("request", (request) => request.url().startsWith(url) || request.url().startsWith("data:") || outside.push(request.url()));
  await page.goto(url);
  return page;
}

async function check(name, action) {
  await action();
  console.log(`ok ${name}`);
}

const message = (page) => page.getByLabel("Message", { exact: true });

try {
  const page = await open();
  if (key) {
    await check("a wrong key is refused", async () => {
      await page.getByLabel("API key").fill("rk-wrong");
      await page.keyboard.press("Enter");
      await page.getByText("The gateway refused this key").waitFor();
    });
    await check("a key signs in", async () => {
      await page.getByLabel("API key").fill(key);
      await page.keyboard.press("Enter");
      await message(page).waitFor();
    });
  }
  await check("a message is answered", async () => {
    await message(page).fill("<script>alert(1)</script> <b>hi</b>");
    await page.keyboard.press("Enter");
    await page.getByText("tok/s").waitFor();
    if (await page.locator(".turn b, .turn script").count()) throw new Error("text became markup");
  });
  await check("two models are compared and the link keeps it", async () => {
    await page.getByText("+ compare").click();
    await message(page).fill("again");
    await page.keyboard.press("Enter");
    await page.locator(".column").nth(1).getByText("tok/s").waitFor();
    if (!page.url().includes("compare=")) throw new Error(page.url());
  });
  await check("log-probabilities are shown", async () => {
    await page.getByText("Parameters and system prompt").click();
    await page.getByLabel("Log-probabilities").check();
    await message(page).fill("more");
    await page.keyboard.press("Enter");
    await page.locator(".token").first().waitFor();
    if (!(await page.locator(".token").first().getAttribute("title")).includes("%")) throw new Error("no percentage");
  });
  await check("the request is exported", async () => {
    await page.getByText("Export", { exact: true }).click();
    await page.getByText("curl http").waitFor();
    await page.getByText("python", { exact: true }).click();
    await page.getByText("from openai import OpenAI").waitFor();
  });
  await check("engines are shown", async () => {
    await page.keyboard.press("Escape");
    await page.locator("#main").focus();
    await page.keyboard.press("g");
    await page.keyboard.press("e");
    await page.getByText("ready", { exact: true }).first().waitFor();
  });
  await check("a key is created, shown once and revoked", async () => {
    await page.getByRole("link", { name: "Keys" }).click();
    await page.getByLabel("Name").fill("of the test");
    await page.getByText("Create key").click();
    await page.getByText("It is shown once").waitFor();
    await page.getByText("Done", { exact: true }).click();
    page.once("dialog", (dialog) => dialog.accept());
    await page.getByRole("row", { name: "of the test" }).getByText("Revoke").click();
    await page.getByText("revoked", { exact: true }).waitFor();
  });
  await check("usage is shown", async () => {
    await page.getByRole("link", { name: "Usage" }).click();
    await page.getByText("Output tokens").waitFor();
  });
  if (pictures) {
    await mkdir(pictures, { recursive: true });
    const state = await page.evaluate(() => sessionStorage.getItem("rondo-key"));
    for (const colorScheme of ["light", "dark"]) {
      for (const width of [1280, 390]) {
        const other = await open({ colorScheme, viewport: { width, height: 800 } });
        await other.evaluate((text) => text && sessionStorage.setItem("rondo-key", text), state);
        for (const view of ["playground", "engines", "keys", "usage"]) {
          await other.goto(`${url}/#/${view}`);
          await other.reload();
          await other.locator("main h1").first().waitFor({ state: "attached" });
          await other.screenshot({ path: `${pictures}/${view}-${colorScheme}-${width}.png` });
        }
        await other.close();
      }
    }
  }
  await check("nothing is loaded from elsewhere and nothing failed", async () => {
    if (outside.length || broken.length) throw new Error([...outside, ...broken].join("\n"));
  });
  if (process.env.RONDO_KILL) {
    await check("a lost gateway is shown and its return too", async () => {
      process.kill(Number(process.env.RONDO_KILL), "SIGKILL");
      await page.locator(".live.lost").waitFor();
      await page.locator(".live:not(.lost)").waitFor();
    });
  }
} finally {
  await browser.close();
}
