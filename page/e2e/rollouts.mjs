// RL jobs and their rollouts: those of a real job, and a job with many steps, equal rewards and an alarm.
import { readFile } from "node:fs/promises";
import { expect, SLOW } from "./browser.mjs";

const JOB = { id: "job-9", object: "job", kind: "rl", model: "toy", state: "running", attempt: 1, owner: "k", hash: "ab", name: "long-rl", step: 40, steps: 90, settings: {}, resources: {}, launcher: "local", error: null, result: null, created: 1.7e9, started: 1.7e9 + 5, ended: null };
const STEPS = Array.from({ length: 40 }, (_, place) => place + 1);

const rollout = (step, group, sample) => {
  const reward = group === 2 ? 0 : sample % 2;
  return { id: `${step}-${group}-${sample}`, object: "rl.rollout", step, problem: `word ${group}`, outcome: "ok", reward, parts: { correct: reward }, advantage: group === 2 ? 0 : reward - 0.5, finish_reason: sample === 3 ? "length" : "stop", prompt_tokens: 9, tokens: 6, sampled: 6, versions: [step - 1, step], prompt: `Reverse the word number ${group}.`, text: `step ${step} sample ${sample}` };
};

// A row of an asynchronous job, without the fields that the page does not show.
const metrics = (step) => ({
  ...{ step, reward: Math.min(1, step / 50), alarms: Number(step >= 38), equal_groups: 1 / 3, solve_none: 1 / 3, solve_all: 0 },
  ...{ stale: 0.75, stale_max: 2, "stale/0": 0.5, "stale/1": 0.25, "stale/2": 0.25 },
  ...{ seconds: 4, "seconds/rollout": 1, "seconds/score": 0.2, "seconds/known": 0.5, "seconds/train": 1.8, "seconds/push": 0.3, "seconds/store": 0.1, "hidden/score": 0.4 },
  ...{ "memory/allocated": 2 ** 31 + step * 1e6, "memory/allocated_peak": 3 * 2 ** 30 },
});

export async function rlJobs({ browser, page, key, check }) {
  await check("RL jobs are listed with reward, alarms and zero-variance groups, and open their rollouts", async () => {
    await page.locator("#main").focus();
    await page.keyboard.press("g");
    await page.keyboard.press("l");
    await page.getByRole("heading", { name: "RL", level: 1 }).waitFor();
    const row = page.getByRole("row", { name: /reverser/ });
    await row.getByText("succeeded").waitFor(SLOW);
    await row.getByRole("img", { name: /^Reward of reverser: latest/ }).waitFor();
    expect(/none.*\d %/s.test(await row.innerText()), await row.innerText());
    await browser.checkAccess(page, "rl");
    await row.getByRole("link", { name: "reverser" }).click();
    await page.getByText("Step 3", { exact: true }).waitFor();
  });
  await check("phases, staleness and memory of the real job are drawn, and its timeline is a Chrome trace", async () => {
    await page.getByRole("list", { name: /^Phases of step 3/ }).getByText("Training").waitFor();
    await page.getByRole("list", { name: "Staleness of step 3, mean 0" }).getByText("100 %").waitFor();
    await page.getByRole("img", { name: /^Memory by step.*resident/ }).waitFor();
    await page.getByRole("img", { name: /^Zero variance by step/ }).waitFor();
    const saved = page.waitForEvent("download");
    await page.getByRole("button", { name: "Perfetto trace" }).click();
    const { traceEvents } = JSON.parse(await readFile(await (await saved).path(), "utf8"));
    expect(["step 1", "step 2", "step 3"].every((name) => traceEvents.some((each) => each.ph === "X" && each.name === name && each.dur > 0)), JSON.stringify(traceEvents));
  });
  await check("the list of RL jobs explains what is missing or failed, and fits a phone", async () => {
    const other = await browser.open({ key });
    let answer = { json: { object: "list", data: [], has_more: false } };
    await other.route("**/v1/jobs?*", (route) => route.fulfill(answer));
    await other.route("**/v1/jobs/job-9/metrics*", (route) => route.fulfill({ json: { data: STEPS.map(metrics), has_more: false } }));
    await other.route("**/v1/jobs/job-8/metrics*", (route) => route.fulfill({ status: 500, body: "metrics.jsonl is damaged" }));
    await other.goto(`${browser.url}/#/rl`);
    await other.getByText("No RL jobs").waitFor();
    await browser.checkAccess(other, "rl-empty");
    answer = { status: 500, body: "the database is locked" };
    await other.reload();
    await other.getByText("Loading RL jobs failed").waitFor();
    await browser.checkAccess(other, "rl-failed");
    const queued = { ...JOB, id: "job-7", name: "waiting-rl", state: "queued", attempt: 0, step: null, steps: null, started: null, created: 1.7e9 + 20 };
    answer = { json: { object: "list", data: [queued, { ...JOB, id: "job-8", name: "broken-rl", created: 1.7e9 + 10 }, JOB], has_more: false } };
    await other.getByRole("button", { name: "Retry" }).click();
    const row = other.getByRole("row", { name: /long-rl/ });
    await row.getByText("0.8", { exact: true }).waitFor();
    await row.getByText("33 %").waitFor();
    await row.locator(".chip.warn", { hasText: "1" }).waitFor();
    await other.getByRole("row", { name: /broken-rl/ }).getByText("metrics.jsonl is damaged").waitFor();
    const names = await other.getByRole("row").locator("td a").allInnerTexts();
    expect(names.join() === "waiting-rl,broken-rl,long-rl", `not the newest first: ${names}`);
    await browser.checkAccess(other, "rl-jobs");
    await other.setViewportSize({ width: 390, height: 844 });
    expect((await other.evaluate(() => document.documentElement.scrollWidth)) <= 390, "wider than the window");
    await browser.checkAccess(other, "rl-jobs-390");
    await other.context().close();
  });
}

export async function rollouts({ browser, page, key, check }) {
  await check("samples of a real job are shown with rewards, and a sample with its tokens", async () => {
    await page.goto(`${browser.url}/#/jobs?kind=rl`);
    await page.getByRole("link", { name: "reverser", exact: true }).click();
    await page.locator(".title .chip", { hasText: "succeeded" }).waitFor(SLOW);
    await page.getByRole("radio", { name: "Rollouts" }).click();
    await page.getByText("Step 3", { exact: true }).waitFor();
    await page.locator(".samples summary").first().click();
    await page.locator(".tokenized span").first().waitFor();
    await browser.checkAccess(page, "rollouts-real");
    await page.getByLabel("Previous step").click();
    await page.getByText("Step 2", { exact: true }).waitFor();
    expect(page.url().includes("step=2"), page.url());
  });
  await check("steps, orders and conditions select samples; equal rewards and alarms are marked", async () => {
    const other = await browser.open({ key });
    await other.route("**/v1/jobs/job-9", (route) => route.fulfill({ json: JOB }));
    await other.route("**/v1/jobs/job-9/metrics*", (route) => {
      const after = Number(new URL(route.request().url()).searchParams.get("after"));
      return route.fulfill({ json: { data: STEPS.filter((step) => step > after).map(metrics), has_more: false } });
    });
    await other.route("**/v1/jobs/job-9/alarms", (route) => route.fulfill({ json: { data: [{ alarm: "low_entropy", step: 38, since: 30, saw: "entropy fell from 1.2 to 0.1", advice: "raise the temperature", over: false }] } }));
    await other.route("**/v1/jobs/job-9/rollouts?*", (route) => {
      const query = new URL(route.request().url()).searchParams;
      if (query.getAll("where").includes("nonsense")) return route.fulfill({ status: 400, json: { error: { message: "'nonsense' is no condition", param: "where" } } });
      const step = Number(query.get("step") ?? 40);
      const data = [0, 1, 2].flatMap((group) => [0, 1, 2, 3].map((sample) => rollout(step, group, sample)));
      return route.fulfill({ json: { object: "list", data, has_more: false, steps: STEPS } });
    });
    await other.route("**/v1/jobs/job-9/rollouts/*", (route) => {
      const tokens = ["step", " 40", " sam", "ple", " 1", "<|im_end|>"];
      const piece = { token_ids: [1, 2, 3, 4, 5, 6], sampled: [true, true, true, true, true, true], logprobs: [-0.1, -3, -0.2, -0.01, -1, -0.3], versions: [39, 39, 39, 40, 40, 40], advantages: [0.5, 0.5, 0.5, -0.5, -0.5, 0.5], tokens };
      return route.fulfill({ json: { ...rollout(40, 0, 1), messages: [{ role: "user", content: "Reverse the word number 0." }], text: tokens.join(""), detail: "expected 0 rebmun", pieces: [piece] } });
    });
    await other.goto(`${browser.url}/#/jobs?job=job-9&tab=Rollouts`);
    await other.getByText("low entropy").waitFor();
    await other.getByText("all rewards equal").waitFor();
    await other.getByRole("img", { name: /^Reward by step/ }).waitFor();
    await other.getByRole("list", { name: "Staleness of step 40, mean 0.75" }).getByText("50 %").waitFor();
    await other.getByText("Graders also worked 400 ms").waitFor();
    await browser.checkAccess(other, "rollouts");
    await other.getByLabel("Step", { exact: true }).fill("4");
    await other.getByText("Step 5", { exact: true }).waitFor();
    await other.getByRole("list", { name: "Phases of step 5, 4.0 s" }).getByText("1.8 s, 45 %").waitFor();
    expect(other.url().includes("step=5"), other.url());
    await other.locator(".samples summary").nth(1).click();
    for (const colour of ["Log-probability", "Version", "Advantage"]) {
      await other.getByRole("radio", { name: colour }).click();
      await browser.checkAccess(other, `rollout-${colour.toLowerCase()}`);
    }
    await other.getByLabel("Conditions").fill("nonsense");
    await other.keyboard.press("Enter");
    await other.getByText("is no condition").waitFor();
    await other.setViewportSize({ width: 390, height: 844 });
    await other.getByLabel("Conditions").fill("");
    await other.keyboard.press("Enter");
    await other.getByText("all rewards equal").waitFor();
    expect((await other.evaluate(() => document.documentElement.scrollWidth)) <= 390, "wider than the window");
    await browser.checkAccess(other, "rollouts-390");
    await other.context().close();
  });
  await check("a job without rollouts says when they appear", async () => {
    const other = await browser.open({ key });
    await other.route("**/v1/jobs/job-9", (route) => route.fulfill({ json: JOB }));
    await other.route("**/v1/jobs/job-9/*", (route) => route.fulfill({ json: { data: [], has_more: false, steps: [] } }));
    await other.goto(`${browser.url}/#/jobs?job=job-9&tab=Rollouts`);
    await other.getByText("No rollouts yet").waitFor();
    await browser.checkAccess(other, "rollouts-none");
    await other.context().close();
  });
}
