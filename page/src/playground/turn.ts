// One turn of a conversation, and how the events of a stream add to it.

export interface Token {
  text: string;
  logprob: number | null;
  others: { text: string; logprob: number }[];
}

export interface ToolCall {
  id: string;
  name: string;
  arguments: string;
}

export interface Turn {
  role: "user" | "assistant" | "tool";
  content: string;
  reasoning: string;
  tokens: Token[];
  calls: ToolCall[];
  // Of a tool's result: the call that it answers.
  callId: string;
  error: string;
  // stop, length, tool_calls; "stopped" by the reader, or "error"
  finish: string;
  // Output tokens; while the response arrives, its events are counted.
  count: number;
  // To the first token, and to the end.
  firstSeconds: number;
  seconds: number;
}

export function turn(role: Turn["role"], content = ""): Turn {
  return {
    role,
    content,
    reasoning: "",
    tokens: [],
    calls: [],
    callId: "",
    error: "",
    finish: "",
    count: 0,
    firstSeconds: 0,
    seconds: 0,
  };
}

// Tokens per second after the first one.
export function rate(turn: Turn): number {
  const decoding = turn.seconds - turn.firstSeconds;
  if (turn.count > 1 && decoding > 0.001) return (turn.count - 1) / decoding;
  return turn.seconds ? turn.count / turn.seconds : 0;
}

export interface StreamEvent {
  usage?: { completion_tokens: number } | null;
  error?: { message: string };
  choices?: {
    finish_reason?: string | null;
    logprobs?: { content?: { token: string; logprob: number; top_logprobs?: { token: string; logprob: number }[] }[] | null } | null;
    delta?: {
      content?: string | null;
      reasoning?: string | null;
      reasoning_content?: string | null;
      tool_calls?: { index: number; id?: string; function?: { name?: string; arguments?: string } }[];
    };
  }[];
}

// The turn after some events of the stream.
export function read(last: Turn, events: StreamEvent[]): Turn {
  const next = { ...last, calls: [...last.calls] };
  const tokens: Token[] = [];
  for (const event of events) {
    const choice = event.choices?.[0];
    const delta = choice?.delta ?? {};
    next.content += delta.content ?? "";
    next.reasoning += delta.reasoning_content ?? delta.reasoning ?? "";
    for (const part of delta.tool_calls ?? []) {
      const old = next.calls[part.index] ?? { id: "", name: "", arguments: "" };
      next.calls[part.index] = {
        id: part.id || old.id,
        name: old.name + (part.function?.name ?? ""),
        arguments: old.arguments + (part.function?.arguments ?? ""),
      };
    }
    for (const each of choice?.logprobs?.content ?? []) {
      const others = (each.top_logprobs ?? []).map((other) => ({ text: other.token, logprob: other.logprob }));
      tokens.push({ text: each.token, logprob: each.logprob, others });
    }
    if (choice?.finish_reason) next.finish = choice.finish_reason;
    if (choice && Object.keys(delta).length) next.count += 1;
    if (event.usage) next.count = event.usage.completion_tokens;
  }
  if (tokens.length) next.tokens = [...last.tokens, ...tokens];
  return next;
}
