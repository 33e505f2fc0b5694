import { describe, expect, it } from "vitest";
import type { Model } from "../state/api";
import { type Branch, family, forest } from "./tree";

const model = (id: string, base: string | null, more: Partial<Model> = {}) => ({ id, job: id, step: null, base, lineage: { base, parent: null, config: {}, metrics: {} }, ...more }) as unknown as Model;
const shape = (branch: Branch): unknown => [branch.id, branch.below.map(shape)];

describe("lineage", () => {
  const models = [model("c", "b"), model("b", "demo"), model("d", "demo"), model("b@5", "demo", { job: "b", step: 5 })];
  it("lies below what each model was trained from, checkpoints below their job's model", () => {
    expect(forest(models).map(shape)).toEqual([["demo", [["b", [["c", []], ["b@5", []]]], ["d", []]]]]);
  });
  it("of one model leaves its relatives out", () => {
    expect(shape(family(forest(models), "b")!)).toEqual(["demo", [["b", [["c", []], ["b@5", []]]]]]);
    expect(family(forest(models), "none")).toBeNull();
  });
  it("ends where damaged data form a circle", () => {
    const circle = [model("x", "y"), model("y", "x")];
    expect(forest(circle).map((each) => each.id).sort()).toEqual(["x", "y"]);
  });
});
