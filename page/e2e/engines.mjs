// Engines: cards, confirmation, registration, logs, loss of an engine.
import { eventually, expect } from "./browser.mjs";

export async function engines({ browser, page, check, scripted }) {
  const card = page.getByRole("article", { name: new URL(scripted.url).host });
  await check("an engine shows its load, and is drained and resumed after a confirmation", async () => {
    await page.goto(`${browser.url}/#/engines`);
    await card.getByText("3 requests running").waitFor();
    await card.getByText("KV cache 42 %").waitFor();
    await card.getByText(/^\d+(\.\d)? tokens\/s$/).waitFor();
    await card.getByText("25 %").waitFor();
    await browser.checkAccess(page, "engines");
    await card.getByRole("button", { name: "Drain" }).click();
    await page.getByRole("dialog").getByText("requests for it will be refused").waitFor();
    await browser.checkAccess(page, "engines-confirmation");
    await page.keyboard.press("Escape");
    await card.getByText("ready", { exact: true }).waitFor();
    await card.getByRole("button", { name: "Drain" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Drain" }).click();
    await card.getByText("draining", { exact: true }).waitFor();
    await card.getByRole("button", { name: "Resume" }).click();
    await card.getByText("ready", { exact: true }).waitFor();
  });
  await check("an engine is registered, refused twice, and removed", async () => {
    const register = async (url) => {
      await page.getByRole("button", { name: "Register" }).first().click();
      await page.getByLabel(/URL of a server/).fill(url);
      await page.getByRole("dialog").getByRole("button", { name: "Register" }).click();
    };
    await register("http://127.0.0.1:9");
    const other = page.getByRole("article", { name: "Engine 127.0.0.1:9", exact: true });
    await other.waitFor();
    await register("http://127.0.0.1:9");
    await page.getByText("is registered already").waitFor();
    await browser.checkAccess(page, "engines-register");
    await page.keyboard.press("Escape");
    await other.getByRole("button", { name: "Remove" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Remove" }).click();
    await other.waitFor({ state: "detached" });
  });
  await check("a log is shown, followed, read back and searched", async () => {
    await page.goto(`${browser.url}/#/engines?tab=logs&part=gateway`);
    const lines = page.locator(".lines");
    await lines.getByText("rondo.access").first().waitFor();
    await browser.checkAccess(page, "logs");
    const marker = `/v1/none-${Date.now()}`;
    await page.evaluate((path) => fetch(path), marker);
    await lines.getByText(marker).first().waitFor();
    await page.getByLabel("Search the log").fill(marker);
    await page.getByText(/of [1-9]/).waitFor();
    await page.keyboard.press("Enter");
    await page.getByText(/^1 of/).waitFor();
    await page.getByLabel("Search the log").fill("");
    const earlier = page.getByRole("button", { name: "Earlier lines" });
    if (await earlier.count()) {
      const before = await lines.evaluate((each) => each.textContent.length);
      await lines.evaluate((each) => each.scrollTo(0, 0));
      await eventually(async () => (await lines.evaluate((each) => each.textContent.length)) > before, "no earlier lines");
    }
  });
}

export async function lostEngine({ page, check, scripted, browser }) {
  await check("an engine that is lost is shown, with the reason", async () => {
    await page.goto(`${browser.url}/#/engines`);
    scripted.close();
    const card = page.getByRole("article", { name: new URL(scripted.url).host });
    await card.getByText("unreachable", { exact: true }).waitFor();
    await card.locator(".error").waitFor();
    await browser.checkAccess(page, "engines-lost");
    await page.goto(`${browser.url}/#/playground?model=scripted`);
    await page.getByText("scripted (not ready)").waitFor({ state: "attached" });
  });
}
