// Models: the registry after the jobs of the test, versions, lineage, promotion, aliases, removal.
import { expect, SLOW } from "./browser.mjs";

export async function models({ browser, page, key, check, ask }) {
  const get = async (path) => (await fetch(browser.url + path, { headers: key ? { Authorization: `Bearer ${key}` } : {} })).json();
  await check("models of finished jobs are listed with their lineage", async () => {
    await page.goto(`${browser.url}/#/models`);
    await page.getByRole("row", { name: /facts/ }).waitFor(SLOW);
    await browser.checkAccess(page, "models");
    await page.getByRole("radio", { name: "Lineage" }).click();
    const tree = page.getByRole("list", { name: "Lineage of all models" });
    await tree.getByRole("link", { name: "toy", exact: true }).waitFor();
    await tree.getByRole("link", { name: "facts", exact: true }).waitFor();
    await browser.checkAccess(page, "models-lineage");
    await tree.getByRole("link", { name: "facts", exact: true }).click();
    await page.getByRole("heading", { name: "facts", level: 1 }).waitFor();
    await page.getByRole("region", { name: "Checkpoints" }).getByRole("link", { name: /^Try step/ }).first().waitFor();
    await browser.checkAccess(page, "model");
  });
  await check("a version is promoted, replaced and rolled back", async () => {
    const { data } = await get("/v1/registry?name=facts");
    const [first] = data;
    const { data: steps } = await get(`/v1/jobs/${first.job}/checkpoints`);
    await ask("/v1/registry", { job: first.job, step: steps[0].step, name: "facts" });
    const versions = page.getByRole("region", { name: "Versions of facts" });
    await versions.waitFor();
    const promote = async (row) => {
      await row.getByRole("button", { name: /^Promote/ }).click();
      await page.getByRole("dialog").getByText("from now on").waitFor();
      await page.getByRole("dialog").getByRole("button", { name: "Promote" }).click();
      await row.getByText("production").waitFor();
    };
    const own = versions.getByRole("row", { name: /this one/ });
    const other = versions.getByRole("row", { name: /step \d/ });
    await promote(own);
    await promote(other);
    await browser.checkAccess(page, "model-versions");
    await other.getByRole("button", { name: /^Roll back/ }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Roll back" }).click();
    await own.getByText("production").waitFor();
  });
  await check("an alias is added, refused and removed, and a model opens in the playground", async () => {
    await page.getByLabel("Another name").fill("a/b c");
    await page.getByRole("button", { name: "Add alias" }).click();
    await page.getByRole("alert").first().waitFor();
    await page.getByLabel("Another name").fill("reader");
    await page.getByRole("button", { name: "Add alias" }).click();
    await page.getByLabel("Remove the alias reader").waitFor();
    await page.getByLabel("Remove the alias reader").click();
    await page.getByLabel("Remove the alias reader").waitFor({ state: "detached" });
    await page.locator(".title").getByRole("link", { name: "Try facts" }).click();
    await page.getByLabel("Message", { exact: true }).waitFor();
    expect(/model=/.test(page.url()), page.url());
  });
  await check("a removed model says so, and an empty registry names what fills it", async () => {
    await page.goto(`${browser.url}/#/models?model=none`);
    await page.getByText("This model is not in the registry").waitFor();
    await browser.checkAccess(page, "model-removed");
    const other = await browser.open({ key });
    await other.route("**/v1/registry?*", (route) => route.fulfill({ json: { object: "list", data: [], has_more: false } }));
    await other.goto(`${browser.url}/#/models`);
    await other.getByText("No registered models").waitFor();
    await browser.checkAccess(other, "models-empty");
    await other.context().close();
  });
}
