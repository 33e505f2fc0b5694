// Calls of the gateway's API. The key lives in sessionStorage and is never part of a URL.
import { signal } from "@preact/signals";
import type { components } from "./schema";

export type EngineState = components["schemas"]["EngineState"];
export type ShownKey = components["schemas"]["ShownKey"];
export type NewKey = components["schemas"]["NewKey"];
export type UsageRow = components["schemas"]["UsageRow"];

const KEY = "rondo-key";

export const key = signal(sessionStorage.getItem(KEY) ?? "");
export const signInNeeded = signal(false);

export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
  ) {
    super(message);
  }
}

export function setKey(text: string): void {
  key.value = text;
  signInNeeded.value = false;
  if (text) sessionStorage.setItem(KEY, text);
  else sessionStorage.removeItem(KEY);
}

export function headers(): Record<string, string> {
  const found: Record<string, string> = { "Content-Type": "application/json" };
  if (key.value) found["Authorization"] = `Bearer ${key.value}`;
  return found;
}

export async function call<T>(method: string, path: string, body?: unknown): Promise<T> {
  const response = await send(method, path, body);
  return (await response.json()) as T;
}

export async function send(
  method: string,
  path: string,
  body?: unknown,
  stop?: AbortSignal,
): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(path, {
      method,
      headers: headers(),
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: stop,
    });
  } catch (error) {
    if ((error as Error).name === "AbortError") throw error;
    throw new ApiError(0, "unreachable", "The gateway does not answer. Is `rondo up` running?");
  }
  if (!response.ok) throw await errorOf(response);
  return response;
}

async function errorOf(response: Response): Promise<ApiError> {
  const text = await response.text();
  let message = text || response.statusText;
  let code = "";
  try {
    const error = JSON.parse(text).error;
    message = error.message;
    code = error.code ?? "";
  } catch {
    // not in OpenAI's shape: the text is shown as it is
  }
  if (response.status === 401) signInNeeded.value = true;
  return new ApiError(response.status, code, message);
}

// Events of a stream of server-sent events; comments are left out.
export async function* events(response: Response): AsyncGenerator<string> {
  const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      held += value;
      let end: number;
      while ((end = held.indexOf("\n\n")) >= 0) {
        const data = dataOf(held.slice(0, end));
        held = held.slice(end + 2);
        if (data !== null) yield data;
      }
    }
  } finally {
    await reader.cancel().catch(() => undefined);
  }
}

export function dataOf(event: string): string | null {
  const lines = event
    .split("\n")
    .filter((line) => line.startsWith("data:"))
    .map((line) => line.slice(5).replace(/^ /, ""));
  return lines.length ? lines.join("\n") : null;
}
