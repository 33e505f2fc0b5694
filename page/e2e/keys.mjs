// Keys and usage: create, show once, rights, revoke, sums.
import { eventually, expect } from "./browser.mjs";

export async function keys({ browser, page, check, ask }) {
  await ask("/v1/chat/completions", { model: "toy", max_tokens: 3, messages: [{ role: "user", content: "hi" }] });
  await check("a key is created with rights and limits, and shown once", async () => {
    await page.goto(`${browser.url}/#/keys`);
    await page.getByRole("button", { name: "Create key" }).click();
    const dialog = page.getByRole("dialog");
    await browser.checkAccess(page, "keys-create");
    await dialog.getByLabel("Name").fill("of the test");
    await dialog.getByLabel("files").uncheck();
    await dialog.getByLabel("Models").fill("toy");
    await dialog.getByLabel("Tokens per day").fill("1000");
    await dialog.getByLabel("Expires in days").fill("3");
    await page.getByRole("button", { name: "Create", exact: true }).click();
    await page.getByText("It is shown once").waitFor();
    await browser.checkAccess(page, "keys-secret");
    await page.getByRole("button", { name: "Copy key" }).click();
    const text = await page.locator(".secret").innerText();
    expect((await page.evaluate(() => navigator.clipboard.readText())) === text, "the key was not copied");
    await page.getByRole("button", { name: "Done" }).click();
    const row = await page.getByRole("row", { name: /of the test/ }).innerText();
    for (const part of ["inference, batches", "toy", "1,000 tokens/day", "valid to"]) expect(row.includes(part), row);
    expect(!(await page.content()).includes(text), "the key is still in the page");
    await browser.checkAccess(page, "keys");
    await userKey({ browser, check, page, key: text });
  });
  await check("usage is summed by day, key and model", async () => {
    await page.goto(`${browser.url}/#/usage`);
    await page.getByRole("cell", { name: "toy" }).first().waitFor();
    await browser.checkAccess(page, "usage");
    await page.getByLabel("Split by").selectOption("key");
    await page.getByLabel("Measure").selectOption("requests");
    await eventually(() => page.url().includes("measure=requests"), page.url());
    await page.getByRole("button", { name: "Requests" }).click();
    await page.getByRole("columnheader", { name: "Requests" }).and(page.locator("[aria-sort=descending]")).waitFor();
    await page.getByRole("button", { name: "Copy CSV" }).click();
    expect((await page.evaluate(() => navigator.clipboard.readText())).startsWith("Day (UTC),Key,Model,"), "no CSV");
  });
}

// With a key that is no admin's; then it is revoked while its page is open.
async function userKey({ browser, page, key }) {
  const other = await browser.open({ key });
  await other.goto(`${browser.url}/#/keys`);
  await other.getByText("This is your key").waitFor();
  await browser.checkAccess(other, "keys-user");
  await other.goto(`${browser.url}/#/engines?tab=logs`);
  await other.getByText("Your key has no access to logs").waitFor();
  await other.goto(`${browser.url}/#/usage`);
  await other.getByText("No requests in the last 30 days").waitFor();
  await browser.checkAccess(other, "usage-empty");
  await page.getByLabel("Revoke of the test").click();
  await page.getByRole("dialog").getByRole("button", { name: "Revoke" }).click();
  await page.getByRole("row", { name: /of the test/ }).waitFor({ state: "detached" });
  await page.getByLabel("Show revoked keys").check();
  await page.getByRole("row", { name: /of the test/ }).getByText("revoked").waitFor();
  await other.getByText("The gateway refused this key").waitFor();
  await other.context().close();
}
