// One conversation with one model: streaming, stop, log-probabilities, tool calls.
import { type Signal, signal } from "@preact/signals";
import { events, send } from "./api";

export interface Token {
  text: string;
  logprob: number | null;
  others: { text: string; logprob: number }[];
}

export interface Turn {
  role: "user" | "assistant";
  content: string;
  reasoning: string;
  tokens: Token[];
  tools: { name: string; arguments: string }[];
  error: string;
  seconds: number;
  count: number;
  finish: string;
}

export interface Settings {
  system: string;
  temperature: number;
  top_p: number;
  max_tokens: number;
  logprobs: boolean;
  json: boolean;
}

export const DEFAULTS: Settings = {
  system: "",
  temperature: 1,
  top_p: 1,
  max_tokens: 256,
  logprobs: false,
  json: false,
};

export class Chat {
  readonly turns: Signal<Turn[]> = signal([]);
  readonly busy = signal(false);
  private stopper = new AbortController();

  constructor(readonly model: Signal<string>) {}

  stop(): void {
    this.stopper.abort();
  }

  clear(): void {
    this.stop();
    this.turns.value = [];
  }

  async say(text: string, settings: Settings): Promise<void> {
    this.turns.value = [...this.turns.value, { ...turn("user"), content: text }, turn("assistant")];
    this.stopper = new AbortController();
    this.busy.value = true;
    const begun = performance.now();
    try {
      const body = request(this.model.value, this.turns.value.slice(0, -1), settings);
      const response = await send("POST", "/v1/chat/completions", body, this.stopper.signal);
      for await (const data of events(response)) {
        if (data === "[DONE]") break;
        const event = JSON.parse(data);
        if (event.error) throw new Error(event.error.message);
        this.update((last) => read(last, event));
      }
    } catch (error) {
      const stopped = (error as Error).name === "AbortError";
      this.update((last) => ({
        ...last,
        error: stopped ? "" : (error as Error).message,
        finish: stopped ? "stopped" : "error",
      }));
    } finally {
      this.update((last) => ({ ...last, seconds: (performance.now() - begun) / 1000 }));
      this.busy.value = false;
    }
  }

  private update(change: (last: Turn) => Turn): void {
    const last = this.turns.value.at(-1);
    if (last?.role === "assistant") this.turns.value = [...this.turns.value.slice(0, -1), change(last)];
  }
}

export function turn(role: Turn["role"]): Turn {
  return {
    role,
    content: "",
    reasoning: "",
    tokens: [],
    tools: [],
    error: "",
    seconds: 0,
    count: 0,
    finish: "",
  };
}

export function request(model: string, turns: Turn[], settings: Settings): Record<string, unknown> {
  const messages: { role: string; content: string }[] = turns
    .filter((each) => !each.error)
    .map((each) => ({ role: each.role, content: each.content }));
  if (settings.system) messages.unshift({ role: "system", content: settings.system });
  return {
    model,
    messages,
    stream: true,
    stream_options: { include_usage: true },
    temperature: settings.temperature,
    top_p: settings.top_p,
    max_tokens: settings.max_tokens,
    ...(settings.logprobs ? { logprobs: true, top_logprobs: 5 } : {}),
    ...(settings.json ? { response_format: { type: "json_object" } } : {}),
  };
}

// The turn after one event of the stream.
export function read(last: Turn, event: any): Turn {
  const next = { ...last };
  if (event.usage) next.count = event.usage.completion_tokens;
  const choice = event.choices?.[0];
  if (!choice) return next;
  const delta = choice.delta ?? {};
  next.content += delta.content ?? "";
  next.reasoning += delta.reasoning_content ?? delta.reasoning ?? "";
  for (const call of delta.tool_calls ?? []) {
    const tools = [...next.tools];
    const old = tools[call.index] ?? { name: "", arguments: "" };
    tools[call.index] = {
      name: old.name + (call.function?.name ?? ""),
      arguments: old.arguments + (call.function?.arguments ?? ""),
    };
    next.tools = tools;
  }
  const tokens: Token[] = (choice.logprobs?.content ?? []).map((each: any) => ({
    text: each.token,
    logprob: each.logprob,
    others: (each.top_logprobs ?? []).map((other: any) => ({ text: other.token, logprob: other.logprob })),
  }));
  if (tokens.length) next.tokens = [...next.tokens, ...tokens];
  if (choice.finish_reason) next.finish = choice.finish_reason;
  return next;
}

export function asCurl(origin: string, body: unknown, withKey: boolean): string {
  const quoted = JSON.stringify(body, null, 2).replaceAll("'", "'\\''");
  const auth = withKey ? ` \\\n  -H "Authorization: Bearer $RONDO_API_KEY"` : "";
  return `curl ${origin}/v1/chat/completions \\\n  -H 'Content-Type: application/json'${auth} \\\n  -d '${quoted}'`;
}

export function asPython(origin: string, body: Record<string, unknown>): string {
  const { stream, stream_options, ...rest } = body;
  void stream;
  void stream_options;
  const shown = Object.entries(rest).map(([name, value]) => `    ${name}=${pythonOf(value)},`);
  return [
    "import os",
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url="${origin}/v1", api_key=os.environ.get("RONDO_API_KEY", "none"))`,
    "answer = client.chat.completions.create(",
    ...shown,
    ")",
    "print(answer.choices[0].message.content)",
  ].join("\n");
}

export function pythonOf(value: unknown): string {
  if (value === null || value === undefined) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(pythonOf).join(", ")}]`;
  if (typeof value === "object") {
    const parts = Object.entries(value as object).map(([name, each]) => `${JSON.stringify(name)}: ${pythonOf(each)}`);
    return `{${parts.join(", ")}}`;
  }
  return JSON.stringify(value);
}
