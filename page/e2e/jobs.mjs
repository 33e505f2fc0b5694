// Jobs: the form, curves, log, comparison, changes of the state, and failures.
import { eventually, expect, SLOW } from "./browser.mjs";

const FACTS = ["Zorb is green.", "Plim is red.", "Quap is blue."].map((text) => JSON.stringify({ messages: [{ role: "user", content: `What is ${text.split(" ")[0]}?` }, { role: "assistant", content: text }] })).join("\n");
const file = (name, text) => ({ name, mimeType: "application/jsonl", buffer: Buffer.from(text) });

export async function jobs({ browser, page, check }) {
  await check("without jobs, the view says what one is, and opens the form", async () => {
    await page.route("**/v1/jobs?*", (route) => route.fulfill({ json: { object: "list", data: [], has_more: false } }));
    await page.goto(`${browser.url}/#/jobs`);
    await page.getByText("No jobs", { exact: true }).waitFor();
    await browser.checkAccess(page, "jobs-empty");
    await page.locator(".notice").getByRole("link", { name: "New job" }).click();
    await page.getByRole("heading", { name: "New job" }).waitFor();
    await page.unroute("**/v1/jobs?*");
  });
  await check("the form explains each field, and names a wrong line, a missing file and a wrong setting", async () => {
    await page.getByLabel("epochs").waitFor();
    for (const setting of await page.locator(".field").all()) expect((await setting.locator("p").last().textContent()).length > 5, "a field is not explained");
    await browser.checkAccess(page, "jobs-form");
    await page.getByRole("button", { name: "Submit" }).click();
    await page.getByText("Choose the data.").first().waitFor();
    await page.locator("#data").setInputFiles(file("wrong.jsonl", `${FACTS}\n{"messages": `));
    await page.getByText("Line 4 is no JSON").waitFor();
    await page.locator("#data").setInputFiles(file("facts.jsonl", FACTS));
    await page.locator(".drop").getByText("facts.jsonl, 3 records").waitFor();
    await page.getByLabel("lr", { exact: true }).fill("-1");
    await page.getByRole("button", { name: "Submit" }).click();
    await page.locator(".field", { has: page.getByLabel("lr", { exact: true }) }).locator(".error").waitFor();
    expect(await page.evaluate(() => document.activeElement.id === "settings.lr"), "the wrong field has no focus");
    await browser.checkAccess(page, "jobs-form-wrong");
    await page.getByText("All settings").click();
    await page.getByLabel("Find a setting").fill("weight_decay");
    await page.getByText("weight decay of matrices").waitFor();
    await page.getByRole("radio", { name: /Reinforcement/ }).check();
    await page.getByLabel("Task", { exact: true }).waitFor();
    await browser.checkAccess(page, "jobs-form-rl");
    await page.getByRole("radio", { name: /Supervised/ }).check();
  });
  // Before the long job, which takes the slot.
  await check("an evaluation is submitted, and shows its scores", async () => {
    await page.goto(`${browser.url}/#/jobs?new=evaluate`);
    await page.getByLabel("Model", { exact: true }).fill("toy");
    await page.locator("#data").setInputFiles(file("held_out.jsonl", FACTS));
    await page.locator(".drop").getByText("held_out.jsonl, 3 records").waitFor();
    await page.getByText("An evaluation measures toy on held-out records").waitFor();
    await browser.checkAccess(page, "jobs-form-evaluate");
    await page.getByRole("button", { name: "Submit" }).click();
    await page.locator(".title .chip", { hasText: "succeeded" }).waitFor(SLOW);
    await page.locator(".stats").getByText("token_accuracy").waitFor();
    await browser.checkAccess(page, "job-evaluated");
  });
  await check("a script has a command and files", async () => {
    await page.goto(`${browser.url}/#/jobs?new=script`);
    await page.locator("#command").fill("python my.py 'two words'");
    await page.locator("#files").setInputFiles([file("my.py", "print(1)"), file("facts.txt", "Zorb is green.")]);
    await page.getByRole("button", { name: "Remove my.py" }).waitFor();
    await page.getByRole("button", { name: "Remove facts.txt" }).click();
    await page.getByText("in a folder with my.py, on the CPU").waitFor();
    await browser.checkAccess(page, "jobs-form-script");
  });
  await check("a job is submitted with a dropped file", async () => {
    await page.goto(`${browser.url}/#/jobs?new=sft`);
    await page.getByText("All settings").click();
    await page.getByLabel("Base model").fill("toy");
    const dropped = await page.evaluateHandle((text) => {
      const data = new DataTransfer();
      data.items.add(new File([text], "dropped.jsonl"));
      return data;
    }, FACTS);
    await page.locator(".drop").first().dispatchEvent("drop", { dataTransfer: dropped });
    await page.locator(".drop").getByText("dropped.jsonl, 3 records").waitFor();
    await page.getByLabel("Find a setting").fill("steps");
    await page.getByLabel("steps", { exact: true }).fill("100000");
    await page.getByLabel("Name", { exact: true }).fill("long");
    await page.getByText("A supervised job trains a LoRA of rank 16 over toy for 100000 steps").waitFor();
    const forecast = page.getByRole("region", { name: "Forecast" });
    await forecast.getByText(/of [\d.]+ GiB/).waitFor();
    await forecast.getByText("parameters").first().waitFor();
    await browser.checkAccess(page, "jobs-form-forecast");
    await page.getByRole("button", { name: "Submit" }).click();
    await page.getByRole("heading", { name: "long", level: 1 }).waitFor();
    await page.locator(".title .chip", { hasText: /queued|starting|running/ }).waitFor();
    await browser.checkAccess(page, "job-begun");
  });
  await check("a finished job shows its curve, log, events and settings", async () => {
    await page.goto(`${browser.url}/#/jobs`);
    await page.getByRole("link", { name: "facts", exact: true }).click();
    await page.locator(".title .chip", { hasText: "succeeded" }).waitFor(SLOW);
    await page.getByRole("img", { name: /^Loss by step/ }).waitFor();
    await browser.checkAccess(page, "job");
    await page.getByRole("radio", { name: "Log" }).click();
    await page.locator(".lines").getByText(/step/).first().waitFor();
    await browser.checkAccess(page, "job-log");
    await page.getByRole("radio", { name: "Events" }).click();
    await page.getByText("Job succeeded.").waitFor();
    await browser.checkAccess(page, "job-events");
    await page.getByRole("radio", { name: "Settings" }).click();
    await page.getByRole("cell", { name: "adapter.kind" }).waitFor();
    await browser.checkAccess(page, "job-settings");
  });
  await check("the trained model answers in the playground", async () => {
    await page.getByRole("link", { name: "Open it in the playground" }).click();
    await page.getByLabel("Message", { exact: true }).fill("What is Zorb?");
    await page.keyboard.press("Enter");
    await page.locator(".turn.assistant").last().getByText("tok/s").waitFor();
  });
  await check("jobs are filtered, compared, paused, resumed, cancelled and deleted", async () => {
    await page.goto(`${browser.url}/#/jobs`);
    const long = await page.getByRole("link", { name: "long", exact: true }).evaluate((each) => each.href);
    const row = (name) => page.getByRole("row", { name: new RegExp(name) });
    await row("faster").getByText("succeeded").waitFor(SLOW);
    await row("long").getByText("running").waitFor(SLOW);
    await row("long").getByRole("progressbar").waitFor(SLOW);
    await browser.checkAccess(page, "jobs");
    await page.keyboard.press("Control+k");
    await page.getByRole("combobox", { name: "Command" }).fill("job long");
    await page.getByRole("option", { name: /long/ }).first().waitFor();
    await browser.checkAccess(page, "palette-jobs");
    await page.keyboard.press("Escape");
    await page.getByLabel("Compare facts").check();
    await page.getByLabel("Compare faster").check();
    await page.getByRole("button", { name: "Compare 2" }).click();
    await page.getByRole("img", { name: /^loss by step.*facts.*faster/ }).waitFor();
    await page.getByRole("row", { name: /lr 0.001 0.003/ }).waitFor();
    await browser.checkAccess(page, "jobs-compared");
    await page.getByRole("link", { name: "All jobs" }).click();
    await page.getByLabel("Pause long").click();
    await row("long").getByText("paused").waitFor(SLOW);
    await page.getByLabel("Resume long").click();
    await row("long").getByText(/queued|starting|running/).waitFor();
    await page.getByLabel("Cancel long").click();
    await page.getByRole("dialog").getByText("cannot be resumed").waitFor();
    await page.getByRole("dialog").getByRole("button", { name: "Cancel the job" }).click();
    await row("long").getByText("cancelled").waitFor(SLOW);
    await page.getByRole("combobox", { name: "State" }).selectOption("cancelled");
    await row("facts").waitFor({ state: "detached" });
    // Its process may need some time to end: until then, the gateway refuses.
    const gone = page.getByText("No job matches the filters.");
    await eventually(async () => {
      const dialog = page.getByRole("dialog");
      if (!(await dialog.isVisible()) && !(await gone.isVisible())) await page.getByLabel("Delete long").click({ timeout: 2000 }).catch(() => {});
      if (await dialog.isVisible()) await dialog.getByRole("button", { name: "Delete the job" }).click({ timeout: 2000 }).catch(() => {});
      return gone.isVisible();
    }, "the job is not deleted");
    await page.goto(long);
    await page.getByText("Loading the job failed").waitFor();
    await browser.checkAccess(page, "job-deleted");
  });
}

const JOB = { id: "job-1", object: "job", kind: "sft", model: "toy", state: "failed", attempt: 2, owner: "k", hash: "ab", name: "broken", step: 3, steps: 9, settings: {}, resources: {}, launcher: "local", error: null, created: 1.7e9, started: 1.7e9 + 5, ended: 1.7e9 + 65 };

export async function failedJobs({ browser, key, check }) {
  const open = async (job, rows, query = "job=job-1") => {
    const page = await browser.open({ key });
    await page.route("**/v1/jobs/job-1", (route) => route.fulfill({ json: job }));
    await page.route("**/v1/jobs/job-1/metrics*", (route) => {
      const after = Number(new URL(route.request().url()).searchParams.get("after"));
      const data = rows.filter((row) => row.step > after);
      return route.fulfill({ json: { data: data.slice(0, 5000), has_more: data.length > 5000 } });
    });
    await page.goto(`${browser.url}/#/jobs?${query}`);
    return page;
  };
  await check("a failed job shows its reason, the log of each attempt, and a log that cannot be read", async () => {
    const page = await open({ ...JOB, error: { message: "line 3 of data.jsonl is no record" } }, []);
    await page.getByText("line 3 of data.jsonl is no record").first().waitFor();
    await page.getByText("No metrics", { exact: true }).waitFor();
    await browser.checkAccess(page, "job-failed");
    await page.route("**/v1/jobs/job-1/logs*", (route) => {
      const attempt = new URL(route.request().url()).searchParams.get("attempt");
      if (attempt === "1") return route.fulfill({ status: 404, json: { error: { message: "Attempt 1 of job job-1 has no output." } } });
      return route.fulfill({ body: "one\ntwo\n", headers: { "X-Log-Offset": "0", "X-Log-Size": "8" } });
    });
    await page.getByRole("radio", { name: "Log" }).click();
    await page.locator(".lines").getByText("two").waitFor();
    await page.getByLabel("Attempt").selectOption("1");
    await page.getByText("Attempt 1 of job job-1 has no output.").waitFor();
    await browser.checkAccess(page, "job-log-missing");
    await page.context().close();
  });
  await check("100,000 steps of a reinforcement job are drawn", async () => {
    const rows = Array.from({ length: 100_000 }, (_, step) => ({ step, reward: Math.sin(step / 9000) + Math.random() / 4, "reward/correct": step / 1e5, sampler_kl: 1e-4 + Math.random() * 1e-4, answer_tokens: 40 + Math.random() * 5, "seconds/rollout": 2, "seconds/train": 1 + Math.random(), "seconds/push": 0.2 }));
    const page = await open({ ...JOB, kind: "rl", state: "succeeded", step: 100_000, steps: 100_000, attempt: 1 }, rows);
    await page.getByRole("img", { name: /^Reward by step/ }).waitFor();
    const plot = page.locator(".chart .plot").first();
    await plot.scrollIntoViewIfNeeded();
    const box = await plot.boundingBox();
    await page.mouse.move(box.x + box.width / 2, box.y + box.height / 2);
    await eventually(async () => /step \d/.test(await page.locator(".chart .legend").first().innerText()), "no crosshair");
    expect(/step \d/.test(await page.locator(".chart .legend").nth(1).innerText()), "the crosshair is not shared");
    const saved = page.waitForEvent("download");
    await page.getByLabel("CSV of Reward").click();
    expect((await saved).suggestedFilename() === "Reward.csv", "no CSV");
    await page.getByLabel("Smoothing").selectOption("20");
    await page.getByLabel("Another metric").selectOption("seconds/push");
    await page.getByRole("img", { name: /^seconds\/push by step/ }).waitFor();
    await browser.checkAccess(page, "job-long");
    await page.context().close();
  });
  await check("a running job stays readable when its metrics fail", async () => {
    const page = await browser.open({ key });
    await page.route("**/v1/jobs/job-1", (route) => route.fulfill({ json: { ...JOB, state: "running", ended: null, attempt: 1 } }));
    await page.route("**/v1/jobs/job-1/metrics*", (route) => route.fulfill({ status: 500, body: "metrics.jsonl is damaged" }));
    await page.goto(`${browser.url}/#/jobs?job=job-1`);
    await page.getByText("metrics.jsonl is damaged").waitFor();
    await page.getByRole("button", { name: "Pause broken" }).waitFor();
    await page.context().close();
  });
}
