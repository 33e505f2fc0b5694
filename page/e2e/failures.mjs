// Loading, failed and stale states, and a gateway that is killed and returns.
import { expect } from "./browser.mjs";

export async function states({ browser, key, check }) {
  const LISTS = { jobs: "**/v1/jobs?*", models: "**/v1/registry?*", queue: "**/v1/queue", responses: "**/v1/responses?*", evals: "**/v1/evals?*", keys: "**/v1/keys", usage: "**/v1/usage*", engines: "**/v1/health/logs" };
  await check("each view has a loading and a failed state, and retries", async () => {
    for (const [view, path] of Object.entries(LISTS)) {
      const page = await browser.open({ key });
      let release;
      const held = new Promise((done) => (release = done));
      await page.route(path, async (route) => (await held, route.fulfill({ status: 500, body: "disk is full" })));
      await page.goto(`${browser.url}/#/${view}${view === "engines" ? "?tab=logs" : ""}`);
      await page.locator("[aria-busy=true]").first().waitFor();
      await browser.checkAccess(page, `${view}-loading`);
      release();
      await page.getByText("disk is full").waitFor();
      await browser.checkAccess(page, `${view}-failed`);
      await page.unroute(path);
      // A view that looks again by itself may be faster than the click.
      const gone = page.getByText("disk is full").waitFor({ state: "detached" });
      await Promise.any([page.getByRole("button", { name: "Retry" }).click(), gone]);
      await gone;
      await page.context().close();
    }
  });
  await check("of 10,000 rows only the visible ones are drawn", async () => {
    const page = await browser.open({ key });
    const data = Array.from({ length: 10_000 }, (_, place) => ({ key: "k", day: "2026-01-01", model: `m${place}`, requests: place, input_tokens: 1, output_tokens: 1 }));
    await page.route("**/v1/usage*", (route) => route.fulfill({ json: { data } }));
    await page.goto(`${browser.url}/#/usage`);
    await page.getByRole("button", { name: "Requests" }).click();
    await page.getByRole("cell", { name: "m9999" }).waitFor();
    expect(await page.getByRole("row").count() < 200, "all rows are drawn");
    await page.locator(".scroll.long").evaluate((each) => each.scrollTo(0, each.scrollHeight));
    await page.getByRole("cell", { name: "m0", exact: true }).waitFor();
    await browser.checkAccess(page, "usage-long");
    await page.context().close();
  });
  await check("without engines, the page names the command that starts one", async () => {
    const page = await browser.open({ key });
    await page.route("**/v1/engines/events", (route) => route.fulfill({ contentType: "text/event-stream", body: "data: []\n\n" }));
    await page.route("**/v1/models", (route) => route.fulfill({ json: { data: [] } }));
    await page.reload();
    for (const [view, text] of [["playground", "No model is ready"], ["engines", "No engines"]]) {
      await page.goto(`${browser.url}/#/${view}`);
      await page.getByText(text, { exact: true }).waitFor();
      await browser.checkAccess(page, `${view}-none`);
    }
    await page.context().close();
  });
}

export async function killedGateway({ browser, page, pid, check }) {
  await check("a killed gateway leaves its data, marked stale, and the page reconnects", async () => {
    await page.goto(`${browser.url}/#/engines`);
    await page.getByRole("article").first().waitFor();
    process.kill(pid, "SIGKILL");
    await page.getByText("Stale: the data below is").waitFor();
    expect(await page.getByRole("article").count() > 0, "the data are gone");
    await browser.checkAccess(page, "engines-stale");
    await page.getByText("Stale: the data below is").waitFor({ state: "detached" });
    await page.locator(".live:not(.lost)").getByText("Live").waitFor();
    await page.goto(`${browser.url}/#/playground?model=toy&max_tokens=5`);
    await page.getByLabel("Message", { exact: true }).fill("and again");
    await page.keyboard.press("Enter");
    await page.locator(".turn.assistant").last().getByText("tok/s").waitFor();
  });
}
