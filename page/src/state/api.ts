// Calls of the gateway's API. The key lives in sessionStorage and is never part of a URL.
import { signal } from "@preact/signals";
import type { components } from "./schema";

export type EngineState = components["schemas"]["EngineState"];
export type QueueState = components["schemas"]["QueueState"];
export type ShownKey = components["schemas"]["ShownKey"];
export type NewKey = components["schemas"]["NewKey"];
export type UsageRow = components["schemas"]["UsageRow"];
export type QueueSummary = components["schemas"]["QueueSummary"];
export type Group = components["schemas"]["ShownGroup"];
export type Worker = components["schemas"]["WorkerState"];
export type DeadLetter = components["schemas"]["DeadLetter"];
export type Batch = components["schemas"]["ShownBatch"];
export type Job = components["schemas"]["ShownJob"];
export type NewJob = components["schemas"]["NewJob"];
export type JobEvent = components["schemas"]["JobEventShown"];
export type Checkpoint = components["schemas"]["JobCheckpoint"];
export type Model = components["schemas"]["RegistryEntry"];
export type Alias = components["schemas"]["AliasEntry"];
export type Setting = components["schemas"]["ShownSetting"];
export type StoredFile = components["schemas"]["ShownFile"];
export type Forecast = components["schemas"]["Forecast"];
export type ResponseSummary = components["schemas"]["ResponseSummary"];
export type LogText = components["schemas"]["LogText"];

const KEY = "rondo-key";

export const key = signal(sessionStorage.getItem(KEY) ?? "");
export const signInNeeded = signal(false);
// The gateway's reason for refusing a key.
export const refusal = signal("");

export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    // The field of the request that is wrong.
    readonly param = "",
  ) {
    super(message);
  }
}

export function setKey(text: string): void {
  key.value = text;
  signInNeeded.value = false;
  refusal.value = "";
  if (text) sessionStorage.setItem(KEY, text);
  else sessionStorage.removeItem(KEY);
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
  const used = key.value;
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
  if (response.ok) return response;
  const error = await errorOf(response);
  if (error.status === 401 && used === key.value) {
    refusal.value = used ? error.message : "";
    signInNeeded.value = true;
  }
  throw error;
}

function headers(): Record<string, string> {
  const found: Record<string, string> = { "Content-Type": "application/json" };
  if (key.value) found["Authorization"] = `Bearer ${key.value}`;
  return found;
}

async function errorOf(response: Response): Promise<ApiError> {
  return errorFrom(response.status, (await response.text()) || response.statusText);
}

function errorFrom(status: number, text: string): ApiError {
  try {
    const { message, code, param } = JSON.parse(text).error;
    return new ApiError(status, code ?? "", message, param ?? "");
  } catch {
    // not in OpenAI's shape: the text is shown as it is
    return new ApiError(status, "", text);
  }
}

// Uploads a file; `progress` receives the share that is done.
export function upload(file: File, purpose: string, progress: (share: number) => void, stop?: AbortSignal): Promise<StoredFile> {
  const form = new FormData();
  form.set("purpose", purpose);
  form.set("file", file);
  const request = new XMLHttpRequest();
  return new Promise((done, failed) => {
    request.open("POST", "/v1/files");
    if (key.value) request.setRequestHeader("Authorization", `Bearer ${key.value}`);
    request.upload.onprogress = (event) => progress(event.loaded / Math.max(1, event.total));
    request.onload = () => (request.status < 300 ? done(JSON.parse(request.responseText)) : failed(errorFrom(request.status, request.responseText)));
    request.onerror = () => failed(new ApiError(0, "unreachable", "The upload was interrupted: choose the file again."));
    request.onabort = () => failed(new ApiError(0, "stopped", "The upload was stopped."));
    stop?.addEventListener("abort", () => request.abort(), { once: true });
    request.send(form);
  });
}
