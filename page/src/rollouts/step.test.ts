import { describe, expect, it } from "vitest";
import type { Row } from "../jobs/metrics";
import { durationOf, gradersOf, phasesOf, stalenessOf, traceOf } from "./step";

const ROW = { step: 2, seconds: 5, reward: 0.5, "seconds/train": 2, "seconds/rollout": 1.5, "seconds/push": 0.5, "hidden/score": 0.25, "memory/resident": 1024 } as Row;

describe("phases of a step", () => {
  it("follow each other in the order of the loop, and unknown ones come last", () => {
    expect(phasesOf({ ...ROW, "seconds/extra": 1 })).toEqual([
      { name: "rollout", begin: 0, seconds: 1.5 },
      { name: "train", begin: 1.5, seconds: 2 },
      { name: "push", begin: 3.5, seconds: 0.5 },
      { name: "extra", begin: 4, seconds: 1 },
    ]);
  });
  it("are none where none was measured", () => {
    const row = { step: 0, "held_out/reward": 0.1, "seconds/train": null } as Row;
    expect([phasesOf(row), durationOf(row, []), gradersOf(row)]).toEqual([[], 0, 0]);
  });
  it("last as long as the step, or as their sum where that is larger", () => {
    expect(durationOf(ROW, phasesOf(ROW))).toBe(5);
    expect(durationOf({ ...ROW, seconds: null }, phasesOf(ROW))).toBe(4);
  });
});

describe("staleness of a step", () => {
  it("has the shares of tokens by age, in the order of numbers", () => {
    const row = { step: 1, "stale/8+": 0.1, "stale/0": 0.7, "stale/2": 0.2, stale: 1.2, stale_max: 11 } as Row;
    expect(stalenessOf(row).map((each) => [each.versions, each.share])).toEqual([["0", 0.7], ["2", 0.2], ["8+", 0.1]]);
  });
  it("is not made up", () => {
    expect(stalenessOf({ step: 1, stale: 0 } as Row)).toEqual([]);
  });
});

describe("the timeline", () => {
  const events = (rows: Row[]) => JSON.parse(traceOf("run", rows)).traceEvents as { ph: string; name: string; ts: number; dur: number; args: Record<string, number> }[];
  it("has each step with its phases inside, one step after the other", () => {
    const slices = events([{ step: 0, "held_out/reward": 0 } as Row, ROW, { ...ROW, step: 3 }]).filter((each) => each.ph === "X");
    expect(slices.map((each) => [each.name, each.ts, each.dur])).toEqual([
      ["step 2", 0, 5e6],
      ["rollout", 0, 1.5e6],
      ["train", 1.5e6, 2e6],
      ["push", 3.5e6, 0.5e6],
      ["step 3", 5e6, 5e6],
      ["rollout", 5e6, 1.5e6],
      ["train", 6.5e6, 2e6],
      ["push", 8.5e6, 0.5e6],
    ]);
  });
  it("has reward and memory as counters at the end of their step", () => {
    const counters = events([ROW]).filter((each) => each.ph === "C");
    expect(counters.map((each) => [each.name, each.ts, each.args])).toEqual([
      ["reward", 5e6, { reward: 0.5 }],
      ["memory in bytes", 5e6, { resident: 1024 }],
    ]);
  });
});
