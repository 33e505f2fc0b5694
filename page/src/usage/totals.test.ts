import { expect, it } from "vitest";
import { daysBack, grouped, MOST_GROUPS } from "./totals";

const row = (model: string, day: string, output_tokens: number) => ({ key: "k", model, day, requests: 1, input_tokens: 0, output_tokens });

it("names the days up to today, in UTC", () => {
  expect(daysBack(3, Date.UTC(2026, 2, 1, 23))).toEqual(["2026-02-27", "2026-02-28", "2026-03-01"]);
});

it("sums by model and day, the largest first, and joins the smallest", () => {
  const rows = [row("a", "d1", 1), row("a", "d2", 2), row("b", "d1", 5)];
  const [first, second] = grouped(rows, "model", "output_tokens");
  expect([first!.name, first!.total, second!.days.get("d2")]).toEqual(["b", 5, 2]);
  const many = Array.from({ length: 10 }, (_, place) => row(`m${place}`, "d1", 10 - place));
  const groups = grouped(many, "model", "output_tokens");
  expect(groups).toHaveLength(MOST_GROUPS);
  expect(groups.at(-1)).toMatchObject({ name: "other", total: 4 + 3 + 2 + 1 });
});
