import { expect, it } from "vitest";
import { lineOf } from "./line";

it("shows the fields of a JSON record, and other lines as they are", () => {
  const record = { time: "2026-01-02T03:04:05.678Z", level: "warning", logger: "rondo.x", message: "slow", seconds: 2, engine: "e" };
  expect(lineOf(JSON.stringify(record))).toEqual({
    time: "2026-01-02 03:04:05.678",
    level: "warning",
    text: "warning rondo.x slow seconds=2 engine=e",
  });
  expect(lineOf("{broken").text).toBe("{broken");
  expect(lineOf("Traceback").level).toBe("");
});
