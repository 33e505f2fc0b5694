// Evals: the form, runs, graded items, comparison.
import { expect } from "./browser.mjs";

export async function evals({ browser, page, check }) {
  await check("without evals, the view says what one is; the form names a wrong item", async () => {
    await page.goto(`${browser.url}/#/evals`);
    await page.getByText("No evals", { exact: true }).waitFor();
    await browser.checkAccess(page, "evals-empty");
    await page.locator(".notice").getByRole("link", { name: "New eval" }).click();
    await page.getByLabel("Model", { exact: true }).selectOption("toy");
    const items = await page.getByLabel("Items").inputValue();
    await page.getByLabel("Items").fill(`${items}\n{`);
    await page.getByRole("button", { name: "Create and run" }).click();
    await page.getByText("line 3 is not valid JSON").waitFor();
    await browser.checkAccess(page, "evals-form");
    await page.getByLabel("Items").fill(items);
  });
  await check("an eval is created, its run graded, and its items are read", async () => {
    await page.getByLabel("Name", { exact: true }).fill("capitals");
    await page.getByRole("button", { name: "Create and run" }).click();
    await page.getByRole("heading", { name: "capitals", level: 1 }).waitFor();
    await page.getByRole("region", { name: "Runs" }).getByText("completed").waitFor();
    await browser.checkAccess(page, "eval-runs");
    await page.getByRole("region", { name: "Runs" }).getByRole("link", { name: "toy" }).click();
    await page.getByText("What is the capital of Peru?").waitFor();
    await browser.checkAccess(page, "eval-items");
    await page.getByRole("combobox", { name: "Result" }).selectOption("error");
    await page.getByText("No item has this result.").waitFor();
    await page.getByRole("link", { name: "All runs" }).click();
  });
  await check("a second run is started, and two are compared", async () => {
    await page.getByLabel("Model of another run").selectOption("toy");
    await page.getByRole("button", { name: "Start the run" }).click();
    const done = page.getByRole("region", { name: "Runs" }).getByText("completed");
    await done.nth(1).waitFor();
    for (const box of await page.getByLabel("Compare toy").all()) await box.check();
    await page.getByRole("button", { name: "Compare 2" }).click();
    await page.getByRole("region", { name: "Items side by side" }).getByText("What is the capital of Kenya?").waitFor();
    await browser.checkAccess(page, "eval-comparison");
    await page.goto(`${browser.url}/#/evals?eval=&table=`);
    await page.getByLabel("Delete capitals").click();
    await page.getByRole("dialog").getByRole("button", { name: "Delete the eval" }).click();
    await page.getByText("No evals", { exact: true }).waitFor();
    expect(!page.url().includes("table=1"), page.url());
  });
  await check("a Python function grades, and a judge is asked in one's own words", async () => {
    await page.locator(".notice").getByRole("link", { name: "New eval" }).click();
    await page.getByLabel("Name", { exact: true }).fill("graded");
    await page.getByLabel("Model", { exact: true }).selectOption("toy");
    await page.getByLabel("An answer passes if it").selectOption("label_model");
    await page.getByLabel("Judge", { exact: true }).selectOption("toy");
    expect((await page.getByLabel("Question to the judge").inputValue()).includes("{{ sample.output_text }}"), "question");
    await browser.checkAccess(page, "evals-form-judge");
    await page.getByLabel("An answer passes if it").selectOption("python");
    await page.getByLabel("Python", { exact: true }).fill("def grade(sample, item):\n    return float(bool(item['answer']))\n");
    await browser.checkAccess(page, "evals-form-python");
    await page.getByRole("button", { name: "Create and run" }).click();
    await page.getByRole("heading", { name: "graded", level: 1 }).waitFor();
    const runs = page.getByRole("region", { name: "Runs" });
    await runs.getByText("completed").waitFor();
    await runs.getByText("100").first().waitFor();
    await page.goto(`${browser.url}/#/evals?eval=`);
    await page.getByLabel("Delete graded").click();
    await page.getByRole("dialog").getByRole("button", { name: "Delete the eval" }).click();
    await page.getByText("No evals", { exact: true }).waitFor();
  });
}
