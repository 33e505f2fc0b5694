// Items of stored responses as texts and as turns of a conversation.
import { turn, type Turn } from "../playground/turn";
import { call } from "../state/api";

export interface Item {
  id?: string;
  type?: string;
  role?: string;
  content?: string | { type?: string; text?: string }[] | null;
  name?: string;
  call_id?: string;
  arguments?: string;
  output?: unknown;
  summary?: { text?: string }[];
}

export interface StoredResponse {
  id: string;
  model: string;
  status: string;
  created_at: number;
  instructions?: string | null;
  previous_response_id?: string | null;
  output: Item[];
  error?: { message?: string } | null;
  usage?: { input_tokens?: number; output_tokens?: number } | null;
  metadata?: Record<string, string> | null;
  background?: boolean | null;
}

const LONGEST_CHAIN = 50;
const PAGE = 100;

export function textOf(item: Item): string {
  if (typeof item.content === "string") return item.content;
  const parts = item.content ?? item.summary ?? [];
  if (parts.length) return parts.map((part) => part.text ?? "").join("\n");
  if (item.type === "function_call") return `${item.name}(${item.arguments ?? ""})`;
  if (item.output !== undefined) return typeof item.output === "string" ? item.output : JSON.stringify(item.output);
  return "";
}

export function nameOf(item: Item): string {
  return item.role ?? (item.type ?? "item").replaceAll("_", " ");
}

export async function inputItems(id: string): Promise<Item[]> {
  const found: Item[] = [];
  for (let more = true; more; ) {
    const after = found.length ? `&after=${encodeURIComponent(found.at(-1)!.id ?? "")}` : "";
    const page = await call<{ data: Item[]; has_more: boolean }>("GET", `/v1/responses/${encodeURIComponent(id)}/input_items?order=asc&limit=${PAGE}${after}`);
    found.push(...page.data);
    more = page.has_more && page.data.length > 0;
  }
  return found;
}

// The conversation that ends with a response, with its system prompt.
export async function conversation(id: string): Promise<{ turns: Turn[]; system: string; model: string }> {
  let turns: Turn[] = [];
  let last: StoredResponse | null = null;
  for (let at: string | null | undefined = id, length = 0; at && length < LONGEST_CHAIN; length++) {
    const response: StoredResponse = await call<StoredResponse>("GET", `/v1/responses/${encodeURIComponent(at)}`);
    const items = [...(await inputItems(at)), ...response.output];
    turns = [...turnsOf(items), ...turns];
    last ??= response;
    at = response.previous_response_id;
  }
  return { turns, system: last?.instructions ?? "", model: last?.model ?? "" };
}

export function turnsOf(items: Item[]): Turn[] {
  const found: Turn[] = [];
  for (const item of items) {
    if (item.role === "user" || item.role === "assistant") found.push({ ...turn(item.role, textOf(item)), finish: "stop" });
    else if (item.type === "function_call") {
      const made = { id: item.call_id ?? "", name: item.name ?? "", arguments: item.arguments ?? "" };
      const before = found.at(-1);
      if (before?.role === "assistant") found[found.length - 1] = { ...before, calls: [...before.calls, made] };
      else found.push({ ...turn("assistant"), calls: [made], finish: "tool_calls" });
    } else if (item.type === "function_call_output") found.push({ ...turn("tool", textOf(item)), callId: item.call_id ?? "" });
  }
  return found;
}
