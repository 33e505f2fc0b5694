// Queue: waiting and running requests, dead letters that are retried, batches with their results.
import { expect } from "./browser.mjs";

export async function queue({ browser, page, key, check, ask }) {
  const show = async (tab) => page.goto(`${browser.url}/#/queue${tab ? `?tab=${tab}` : ""}`);
  const item = (model, more = {}) => ({ path: "/v1/chat/completions", body: { model, max_tokens: 5, messages: [{ role: "user", content: "hi" }], ...more } });

  await check("an empty queue names the command that fills it", async () => {
    await show();
    await page.getByText("The queue is empty").waitFor();
    await browser.checkAccess(page, "queue-empty");
  });
  await check("waiting requests are shown by owner and priority, and a group is cancelled", async () => {
    const group = await ask("/v1/queue/groups", { items: [item("scripted"), { ...item("scripted"), priority: 2 }] });
    await page.getByRole("region", { name: "Waiting and running" }).getByRole("cell", { name: "scripted" }).first().waitFor();
    await browser.checkAccess(page, "queue");
    await page.getByLabel(`Cancel ${group.id}`).click();
    await page.getByRole("dialog").getByRole("button", { name: "Cancel the group" }).click();
    await page.getByRole("row", { name: new RegExp(group.id) }).getByText("ended").waitFor();
  });
  await check("a refused request is a dead letter with its reason, and is retried", async () => {
    await ask("/v1/queue/groups", { items: [item("toy", { top_p: 5 })] });
    await page.getByText("Dead letters").first().waitFor();
    const listed = async () => {
      await show("Dead+letters");
      await page.reload();
      return page.locator(".reason", { hasText: "top_p" }).isVisible();
    };
    while (!(await listed())) await page.waitForTimeout(500);
    await browser.checkAccess(page, "queue-dead");
    const retried = page.waitForResponse((response) => response.url().endsWith("/retry"));
    await page.getByLabel(/^Retry /).first().click();
    expect((await (await retried).json()).changed === 1, "nothing was retried");
  });
  await check("a batch shows its progress, and its results are downloaded", async () => {
    await show("Batches");
    await page.getByText("No batches").waitFor();
    await browser.checkAccess(page, "queue-no-batches");
    const lines = [0, 1, 2].map((place) => JSON.stringify({ custom_id: `${place}`, method: "POST", url: "/v1/chat/completions", body: item("toy").body }));
    const form = new FormData();
    form.set("purpose", "batch");
    form.set("file", new Blob([lines.join("\n")]), "lines.jsonl");
    const headers = key ? { Authorization: `Bearer ${key}` } : {};
    const file = await (await fetch(`${browser.url}/v1/files`, { method: "POST", headers, body: form })).json();
    const batch = await ask("/v1/batches", { input_file_id: file.id, endpoint: "/v1/chat/completions", completion_window: "24h" });
    const row = page.getByRole("row", { name: new RegExp(batch.id) });
    await row.getByText("completed").waitFor();
    await row.getByText("3 of 3").waitFor();
    await browser.checkAccess(page, "queue-batches");
    const saved = page.waitForEvent("download");
    await page.getByLabel(`Results of ${batch.id}`).click();
    expect((await saved).suggestedFilename().endsWith(".jsonl"), "no file was saved");
  });
}
