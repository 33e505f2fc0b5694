import { afterEach, describe, expect, it, vi } from "vitest";
import type { Job } from "../state/api";

vi.stubGlobal("sessionStorage", { getItem: () => null });
vi.stubGlobal("location", { hash: "" });
vi.stubGlobal("addEventListener", () => undefined);
const { firstAfter, Latest, newest, STEPS } = await import("./latest");

const job = (more: Partial<Job>): Job => ({ id: "job-1", kind: "rl", state: "running", attempt: 1, step: 3, ...more }) as Job;
const rows = (...steps: number[]) => steps.map((step) => ({ step, reward: step / 10 }));

function served(...answers: (object[] | string)[]): string[] {
  const paths: string[] = [];
  vi.stubGlobal("fetch", async (path: string) => {
    paths.push(path);
    const data = answers.shift()!;
    return typeof data === "string" ? new Response(data, { status: 500 }) : Response.json({ data, has_more: false });
  });
  return paths;
}

afterEach(() => vi.unstubAllGlobals());

describe("latest steps", () => {
  it("are those of a sparkline, or those after the last known one", () => {
    expect(firstAfter(job({ step: 1000 }), [])).toBe(1000 - STEPS);
    expect(firstAfter(job({ step: 3 }), [])).toBe(0);
    expect(firstAfter(job({ step: 9 }), rows(5))).toBe(5);
  });
  it("are read once, and no more after the end of the job", async () => {
    const paths = served(rows(1, 2), rows(3));
    const latest = new Latest();
    await latest.of(job({ step: 2 }));
    const run = await latest.of(job({ step: 3, state: "succeeded" }));
    expect(run.rows.map((row) => row.step)).toEqual([1, 2, 3]);
    expect((await latest.of(job({ state: "succeeded" }))).rows).toBe(run.rows);
    expect(paths).toEqual(["0", "2"].map((after) => `/v1/jobs/job-1/metrics?after=${after}&limit=1000&name=reward&name=alarms&name=equal_groups`));
  });
  it("are read anew for a further attempt, and not before the first", async () => {
    const paths = served(rows(1, 2), rows(1));
    const latest = new Latest();
    expect((await latest.of(job({ attempt: 0, step: null }))).rows).toEqual([]);
    await latest.of(job({}));
    expect((await latest.of(job({ attempt: 2, step: 1 }))).rows.map((row) => row.step)).toEqual([1]);
    expect(paths.length).toBe(2);
  });
  it("of an attempt before are dropped when the further attempt has removed them", async () => {
    served(rows(1, 2, 3), rows(1), rows(2));
    const latest = new Latest();
    expect((await latest.of(job({ attempt: 2, step: 0 }))).rows.length).toBe(3);
    expect((await latest.of(job({ attempt: 2, step: 1 }))).rows.map((row) => row.step)).toEqual([1]);
    expect((await latest.of(job({ attempt: 2, step: 2 }))).rows.map((row) => row.step)).toEqual([1, 2]);
  });
  it("stay when the metrics cannot be read", async () => {
    served(rows(1), "metrics.jsonl is damaged");
    const latest = new Latest();
    await latest.of(job({}));
    expect(await latest.of(job({}))).toMatchObject({ rows: rows(1), problem: "metrics.jsonl is damaged" });
  });
  it("have the newest number of a metric", () => {
    expect(newest([{ step: 1, reward: 0.5 }, { step: 2, reward: null }], "reward")).toBe(0.5);
    expect(newest(rows(1), "alarms")).toBe(null);
  });
});
