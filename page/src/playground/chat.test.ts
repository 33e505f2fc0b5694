import { describe, expect, it } from "vitest";
import { events } from "../state/events";
import { blocks } from "./markdown";
import { asCurl, asPython, asRecord, request } from "./request";
import { changed, defaults, fromParams, toParams } from "./settings";
import { read, turn } from "./turn";
import { judge } from "./validity";

const user = (text: string) => turn("user", text);

describe("a stream", () => {
  it("adds text, reasoning, log-probabilities, tool calls and counts to the turn", () => {
    const parts = [
      { choices: [{ delta: { reasoning: "hm" } }] },
      { choices: [{ delta: { content: "He" }, logprobs: { content: [{ token: "He", logprob: -0.1, top_logprobs: [] }] } }] },
      { choices: [{ delta: { content: "y", tool_calls: [{ index: 0, id: "c1", function: { name: "f", arguments: "{" } }] } }] },
      { choices: [{ delta: { tool_calls: [{ index: 0, function: { arguments: "}" } }] }, finish_reason: "stop" }] },
      { choices: [], usage: { completion_tokens: 3 } },
    ];
    const whole = read(turn("assistant"), parts);
    const step = parts.reduce((last, part) => read(last, [part]), turn("assistant"));
    expect(whole).toEqual(step);
    expect(whole).toMatchObject({ content: "Hey", reasoning: "hm", count: 3, finish: "stop" });
    expect(whole.calls).toEqual([{ id: "c1", name: "f", arguments: "{}" }]);
    expect(whole.tokens).toEqual([{ text: "He", logprob: -0.1, others: [] }]);
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
      for await (const data of events(new Response(body), true)) found.push(data);
      expect(found).toEqual(['{"a":"é"}', "", "[DONE]"]);
    }
  });
});

describe("a request", () => {
  it("has the system prompt first and leaves failed turns out", () => {
    const turns = [user("hi"), { ...turn("assistant"), error: "lost" }];
    expect(request("m", turns, { ...defaults(), system: "be brief" }).messages).toEqual([
      { role: "system", content: "be brief" },
      { role: "user", content: "hi" },
    ]);
  });

  it("holds tool calls and their results", () => {
    const called = { ...turn("assistant"), calls: [{ id: "c1", name: "f", arguments: "{}" }] };
    const body = request("m", [user("hi"), called, { ...turn("tool", "42"), callId: "c1" }], defaults());
    expect(body.messages).toEqual([
      { role: "user", content: "hi" },
      { role: "assistant", content: null, tool_calls: [{ id: "c1", type: "function", function: { name: "f", arguments: "{}" } }] },
      { role: "tool", tool_call_id: "c1", content: "42" },
    ]);
  });

  it("is exported as commands and as a record", () => {
    const body = request("m", [user("it's")], { ...defaults(), numbers: { top_k: 5 } });
    expect(asCurl("http://x", body, true)).toContain("it'\\''s");
    expect(asPython("http://x", body)).toContain('messages=[{"role": "user", "content": "it\'s"}],');
    expect(asPython("http://x", body)).toContain('extra_body={"top_k": 5},');
    expect(asRecord(body)).toBe('{"messages":[{"role":"user","content":"it\'s"}]}');
  });

  it("reports tools that are not JSON", () => {
    expect(() => request("m", [], { ...defaults(), tools: "[" })).toThrow("Tools: not valid JSON");
  });
});

describe("settings", () => {
  it("survive the URL", () => {
    const all = { ...defaults(), system: "a&b", numbers: { temperature: 0, top_k: 3 }, logprobs: true, format: "json_object" as const };
    const params = new URLSearchParams(Object.entries(toParams(all)).filter(([, value]) => value));
    expect(fromParams(params)).toEqual({ ...all, numbers: { ...all.numbers, max_tokens: 512 } });
    expect(changed(defaults())).toBe(0);
  });
});

describe("validity", () => {
  const schema = {
    type: "object",
    properties: { name: { type: "string" }, tags: { type: "array", items: { enum: ["a", "b"] } } },
    required: ["name"],
    additionalProperties: false,
  };
  it.each([
    ['{"name": "x", "tags": ["a"]}', ""],
    ['{"tags": []}', "name is missing"],
    ['{"name": 1}', "name is not of type string"],
    ['{"name": "x", "tags": ["c"]}', "tags[0] is not one of the allowed values"],
    ['{"name": "x", "more": 1}', "more is not in the schema"],
  ])("of %s is %j", (text, problem) => {
    expect(judge(text, schema).problem).toBe(problem);
  });
  it("of a text that is not JSON", () => {
    expect(judge("{").problem).toContain("not valid JSON");
  });
});

describe("Markdown", () => {
  it("is divided at blank lines, headings and fences", () => {
    expect(blocks("# a\nb\nc\n\n```py\nx\n\ny\n```\nd")).toEqual(["# a", "b\nc", "```py\nx\n\ny\n```", "d"]);
    expect(blocks("```\nopen\n\nstill")).toEqual(["```\nopen\n\nstill"]);
  });
});
