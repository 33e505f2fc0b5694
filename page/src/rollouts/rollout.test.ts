import { expect, test } from "vitest";
import { groupsOf, type Rollout } from "./rollout";

const rollout = (id: string, reward: number | null) => ({ id, step: 1, problem: "p", reward, prompt: "?" }) as Rollout;

test("samples are grouped by prompt, and equal rewards are marked", () => {
  const groups = groupsOf([rollout("1-0-0", 1), rollout("1-1-0", 0.5), rollout("1-0-1", 0), rollout("1-1-1", 0.5)]);
  expect(groups.map((each) => [each.samples.length, each.mean, each.flat])).toEqual([
    [2, 0.5, false],
    [2, 0.5, true],
  ]);
});

test("a group without a score has no mean and is not marked", () => {
  expect(groupsOf([rollout("1-0-0", null), rollout("1-0-1", 1)])[0]).toMatchObject({ mean: 1, flat: false });
  expect(groupsOf([rollout("1-0-0", null)])[0]!.mean).toBe(null);
});
