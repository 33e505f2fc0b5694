// The request of a conversation, and its forms for export.
import { NUMBER_NAMES, type Settings } from "./settings";
import type { Turn } from "./turn";

export type Body = Record<string, unknown>;

const TOP_LOGPROBS = 5;

export function request(model: string, turns: Turn[], settings: Settings): Body {
  const body: Body = { model, messages: messages(turns, settings) };
  for (const name of NUMBER_NAMES) if (settings.numbers[name] !== undefined) body[name] = settings.numbers[name];
  const stop = settings.stop.split("\n").filter(Boolean);
  if (stop.length) body.stop = stop;
  if (settings.effort) body.reasoning_effort = settings.effort;
  if (settings.logprobs) Object.assign(body, { logprobs: true, top_logprobs: TOP_LOGPROBS });
  const format = responseFormat(settings);
  if (format) body.response_format = format;
  if (settings.tools.trim()) {
    body.tools = json(settings.tools, "Tools");
    if (settings.toolChoice) body.tool_choice = settings.toolChoice;
  }
  return body;
}

function messages(turns: Turn[], settings: Settings): Body[] {
  const found: Body[] = settings.system ? [{ role: "system", content: settings.system }] : [];
  for (const turn of turns) {
    if (turn.error) continue;
    if (turn.role === "tool") found.push({ role: "tool", tool_call_id: turn.callId, content: turn.content });
    else if (turn.calls.length) found.push({ role: "assistant", content: turn.content || null, tool_calls: turn.calls.map(called) });
    else found.push({ role: turn.role, content: turn.content });
  }
  return found;
}

function called(call: Turn["calls"][number]): Body {
  return { id: call.id, type: "function", function: { name: call.name, arguments: call.arguments } };
}

function responseFormat(settings: Settings): Body | null {
  if (settings.format === "text") return null;
  if (settings.format === "json_object") return { type: "json_object" };
  return { type: "json_schema", json_schema: { name: "answer", schema: json(settings.schema, "JSON schema"), strict: true } };
}

function json(text: string, field: string): unknown {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${field}: not valid JSON. ${(error as Error).message}.`);
  }
}

export function asCurl(origin: string, body: Body, withKey: boolean): string {
  const quoted = JSON.stringify(body, null, 2).replaceAll("'", "'\\''");
  const auth = withKey ? ` \\\n  -H "Authorization: Bearer $RONDO_API_KEY"` : "";
  return `curl ${origin}/v1/chat/completions \\\n  -H 'Content-Type: application/json'${auth} \\\n  -d '${quoted}'`;
}

// Fields that the openai package has no argument for.
const EXTRA = ["top_k", "min_p", "repetition_penalty"];

export function asPython(origin: string, body: Body): string {
  const entries = Object.entries(body);
  const extra = Object.fromEntries(entries.filter(([name]) => EXTRA.includes(name)));
  const shown = entries.filter(([name]) => !EXTRA.includes(name));
  if (Object.keys(extra).length) shown.push(["extra_body", extra]);
  return [
    "import os",
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url="${origin}/v1", api_key=os.environ.get("RONDO_API_KEY", "none"))`,
    "answer = client.chat.completions.create(",
    ...shown.map(([name, value]) => `    ${name}=${pythonOf(value)},`),
    ")",
    "print(answer.choices[0].message.content)",
  ].join("\n");
}

export function pythonOf(value: unknown): string {
  if (value === null || value === undefined) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(pythonOf).join(", ")}]`;
  if (typeof value === "object") {
    const parts = Object.entries(value).map(([name, each]) => `${JSON.stringify(name)}: ${pythonOf(each)}`);
    return `{${parts.join(", ")}}`;
  }
  return JSON.stringify(value);
}

// A line of a data set for fine-tuning: the messages and the tools of the request.
export function asRecord(body: Body): string {
  return JSON.stringify({ messages: body.messages, ...(body.tools ? { tools: body.tools } : {}) });
}

// A line of a batch file.
export function asBatchLine(body: Body): string {
  return JSON.stringify({ custom_id: "1", method: "POST", url: "/v1/chat/completions", body });
}
