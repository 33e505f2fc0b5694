import { describe, expect, it, vi } from "vitest";

vi.stubGlobal("sessionStorage", { getItem: () => null, setItem: () => undefined, removeItem: () => undefined });
const { asCurl, asPython, DEFAULTS, read, request, turn } = await import("./chat");
const { dataOf, events } = await import("./api");

describe("a stream", () => {
  it("adds text, log-probabilities, tool calls and counts to the turn", () => {
    let last = turn("assistant");
    const parts = [
      { choices: [{ delta: { content: "He" }, logprobs: { content: [{ token: "He", logprob: -0.1, top_logprobs: [] }] } }] },
      { choices: [{ delta: { content: "y", tool_calls: [{ index: 0, function: { name: "f", arguments: "{" } }] } }] },
      { choices: [{ delta: { tool_calls: [{ index: 0, function: { arguments: "}" } }] }, finish_reason: "stop" }] },
      { choices: [], usage: { completion_tokens: 3 } },
    ];
    for (const part of parts) last = read(last, part);
    expect(last).toMatchObject({ content: "Hey", count: 3, finish: "stop", tools: [{ name: "f", arguments: "{}" }] });
    expect(last.tokens).toEqual([{ text: "He", logprob: -0.1, others: [] }]);
  });

  it("is read alike however it is cut", async () => {
    const whole = new TextEncoder().encode('data: {"a":"é"}\n\n: waiting\n\ndata: [DONE]\n\n');
    for (let cut = 0; cut <= whole.length; cut++) {
      const body = new ReadableStream({
        start(controller) {
          controller.enqueue(whole.slice(0, cut));
          controller.enqueue(whole.slice(cut));
          controller.close();
        },
      });
      const found: string[] = [];
      for await (const data of events(new Response(body))) found.push(data);
      expect(found).toEqual(['{"a":"é"}', "[DONE]"]);
    }
    expect(dataOf("data: a\ndata: b")).toBe("a\nb");
  });
});

describe("a request", () => {
  it("has the system prompt first and leaves failed turns out", () => {
    const turns = [{ ...turn("user"), content: "hi" }, { ...turn("assistant"), error: "lost" }];
    expect(request("m", turns, { ...DEFAULTS, system: "be brief" }).messages).toEqual([
      { role: "system", content: "be brief" },
      { role: "user", content: "hi" },
    ]);
  });

  it("is exported as commands", () => {
    const body = request("m", [{ ...turn("user"), content: "it's" }], DEFAULTS);
    expect(asCurl("http://x", body, true)).toContain("it'\\''s");
    expect(asPython("http://x", body)).toContain('messages=[{"role": "user", "content": "it\'s"}],');
  });
});
