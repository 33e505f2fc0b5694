// Drives the page in Chromium as a person would: node e2e/main.mjs URL [VIEW ...]. Prints one line per check; fails at
// the first. Environment: RONDO_KEY, an admin's key; RONDO_KILL, the process id of a gateway that is started again;
// RONDO_SCREENSHOTS, a folder for pictures; TEST_SLOWNESS, how many times as long as on an idle machine a check may wait.
import { Browser, expect } from "./browser.mjs";
import { engines, lostEngine } from "./engines.mjs";
import { evals } from "./evals.mjs";
import { killedGateway, states } from "./failures.mjs";
import { failedJobs, jobs } from "./jobs.mjs";
import { keys } from "./keys.mjs";
import { models } from "./models.mjs";
import { playground } from "./playground.mjs";
import { queue } from "./queue.mjs";
import { responses } from "./responses.mjs";
import { rlJobs, rollouts } from "./rollouts.mjs";
import { startScripted } from "./scripted.mjs";
import { firstPaint, shell, signIn } from "./shell.mjs";

const VIEWS = {
  shell: [signIn, firstPaint, shell],
  playground: [playground],
  engines: [engines, lostEngine],
  queue: [queue],
  keys: [keys],
  jobs: [jobs, failedJobs],
  rollouts: [rlJobs, rollouts],
  models: [models],
  responses: [responses],
  evals: [evals],
  states: [states],
  restart: [killedGateway],
};

const [url, ...chosen] = process.argv.slice(2);
const key = process.env.RONDO_KEY;
const browser = await Browser.start(url);
const scripted = await startScripted();

async function ask(path, body, method = "POST") {
  const headers = { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  const response = await fetch(url + path, { method, headers, body: body && JSON.stringify(body) });
  expect(response.ok, `${path}: ${response.status} ${await response.clone().text()}`);
  return response.json();
}

async function check(name, action) {
  const begun = Date.now();
  await action();
  console.log(`ok ${name} (${((Date.now() - begun) / 1000).toFixed(1)} s)`);
}

const engine = await ask("/v1/engines", { url: scripted.url });
try {
  for (const name of chosen.length ? chosen : Object.keys(VIEWS)) {
    expect(name in VIEWS, `There is no view ${name}: ${Object.keys(VIEWS).join(", ")}.`);
    const page = await browser.open({ key: name === "shell" ? "" : key });
    if (name !== "shell") await page.locator("option", { hasText: "scripted" }).first().waitFor({ state: "attached" });
    const all = { browser, page, key, check, ask, scripted, pid: Number(process.env.RONDO_KILL) };
    for (const part of VIEWS[name]) await part(all);
    await page.context().close();
  }
  await check("nothing is loaded from elsewhere, and nothing failed", () => {
    expect(!browser.outside.length && !browser.broken.length, [...browser.outside, ...browser.broken].join("\n"));
  });
} catch (error) {
  for (const page of browser.chromium.contexts().flatMap((each) => each.pages())) await browser.picture(page, "failure");
  throw error;
} finally {
  await ask(`/v1/engines/${engine.id}`, undefined, "DELETE").catch((error) => console.log(error.message));
  scripted.close();
  await browser.chromium.close();
}
