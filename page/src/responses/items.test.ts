import { expect, test, vi } from "vitest";

vi.stubGlobal("sessionStorage", { getItem: () => null });
const { textOf, turnsOf } = await import("./items");

test("items become turns: messages, calls of tools and their results", () => {
  const turns = turnsOf([
    { type: "message", role: "user", content: [{ type: "input_text", text: "Weather?" }] },
    { type: "reasoning", summary: [{ text: "Hm." }] },
    { type: "function_call", call_id: "c", name: "weather", arguments: "{}" },
    { type: "function_call_output", call_id: "c", output: "sunny" },
    { type: "message", role: "assistant", content: "Sunny." },
  ]);
  expect(turns.map((each) => [each.role, each.content])).toEqual([
    ["user", "Weather?"],
    ["assistant", ""],
    ["tool", "sunny"],
    ["assistant", "Sunny."],
  ]);
  expect(turns[1]!.calls).toEqual([{ id: "c", name: "weather", arguments: "{}" }]);
  expect(turns[2]!.callId).toBe("c");
});

test("each kind of item has a text", () => {
  expect(textOf({ type: "reasoning", summary: [{ text: "Hm." }] })).toBe("Hm.");
  expect(textOf({ type: "function_call", name: "f", arguments: "{}" })).toBe("f({})");
});
