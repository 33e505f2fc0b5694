import { describe, expect, it, vi } from "vitest";

vi.stubGlobal("sessionStorage", { getItem: () => null });
const { matching } = await import("./picker");
const { csv } = await import("./table");
const { csvOf, joined, smoothed, thinned } = await import("./thin");
const { age, count, percent, seconds, significant } = await import("./format");

describe("a picker", () => {
  const choices = ["Usage", "Queue", "qwen-queue"].map((label) => ({ group: "View", label, act: () => undefined }));
  it("shows what contains all words, and first what begins with the text", () => {
    expect(matching(choices, "queue").map((each) => each.label)).toEqual(["Queue", "qwen-queue"]);
    expect(matching(choices, "view us").map((each) => each.label)).toEqual(["Usage"]);
    expect(matching(choices, "none")).toEqual([]);
    expect(matching(choices, "")).toHaveLength(3);
  });
});

describe("a table", () => {
  it("is copied as CSV without its buttons", () => {
    const columns = [
      { name: "Name", value: (row: { name: string }) => row.name },
      { name: "Length", value: (row: { name: string }) => row.name.length },
      { name: "Actions", value: () => "", actions: true },
    ];
    expect(csv(columns, [{ name: 'a "b", c' }])).toBe('Name,Length\n"a ""b"", c",8');
  });
});

describe("a curve", () => {
  const x = Array.from({ length: 100_000 }, (_, step) => step);
  it("is thinned without a loss of its peaks", () => {
    const y = x.map((step) => (step === 777 ? 9 : step === 50_000 ? -9 : 0));
    const found = thinned({ name: "a", x, y });
    expect(found.x.length).toBeLessThanOrEqual(5000);
    expect([Math.max(...(found.y as number[])), Math.min(...(found.y as number[]))]).toEqual([9, -9]);
    expect(found.x).toEqual([...found.x].sort((one, other) => one - other));
  });
  it("is smoothed by the mean of its last values", () => {
    expect(smoothed({ name: "a", x: [1, 2, 3], y: [3, 5, 7] }, 2).y).toEqual([3, 4, 6]);
  });
  it("shares the steps of others in a chart and in CSV", () => {
    const curves = [{ name: "a", x: [1, 3], y: [10, 30] }, { name: "b,c", x: [2, 3], y: [5, null] }];
    expect(joined(curves)).toEqual([[1, 2, 3], [10, undefined, 30], [undefined, 5, null]]);
    expect(csvOf(curves)).toBe('step,a,"b,c"\n1,10,\n2,,5\n3,30,');
  });
});

describe("a figure", () => {
  it("has four digits", () => {
    expect([1234, 0.123456, 1e-5, 0, 2.5e7, null, NaN].map(significant)).toEqual(["1,234", "0.1235", "1e-5", "0", "2.5e7", "–", "NaN"]);
  });
  it("has its unit", () => {
    expect([count(1, "token"), count(1234, "token")]).toEqual(["1 token", "1,234 tokens"]);
    expect([seconds(0.05), seconds(2.34), seconds(125)]).toEqual(["50 ms", "2.3 s", "2 min"]);
    expect([age(59_000), age(7_200_000), age(200_000_000)]).toEqual(["59 s", "2 h", "2 d"]);
    expect([percent(0.042), percent(1)]).toEqual(["4.2 %", "100 %"]);
  });
});
