// Engines, models and the own key, updated through server-sent events. A lost connection is renewed.
import { computed, effect, signal } from "@preact/signals";
import { call, type EngineState, type QueueState, send, type ShownKey, signInNeeded } from "./api";
import { events } from "./events";
import { note } from "./history";

export const engines = signal<EngineState[] | null>(null);
// Requests that wait in the gateway because all engines of their model are full.
export const queue = signal<QueueState | null>(null);
export const models = signal<string[] | null>(null);
export const identity = signal<ShownKey | null>(null);
export const connected = signal(false);
export const failure = signal("");
// Times in milliseconds; `now` moves once a second.
export const lastEvent = signal(0);
export const now = signal(Date.now());
export const stale = computed(() => !connected.value && lastEvent.value > 0);
export const admin = computed(() => identity.value?.role === "admin");

const RETRY_MS = 2000;
const KEY_CHECK_MS = 10_000;
// The gateway sends an event or a comment at least every 15 s.
const SILENCE_MS = 40_000;
let stop = new AbortController();

setInterval(() => (now.value = Date.now()), 1000);
effect(() => {
  if (signInNeeded.value) stop.abort();
});

export function restart(): void {
  stop.abort();
  stop = new AbortController();
  served = "";
  identity.value = models.value = engines.value = queue.value = null;
  lastEvent.value = 0;
  void follow(stop.signal);
  void watchKey(stop.signal);
}

async function follow(until: AbortSignal): Promise<void> {
  while (!until.aborted) {
    const attempt = new AbortController();
    let heard = Date.now();
    const watch = setInterval(() => Date.now() - heard > SILENCE_MS && attempt.abort(), 1000);
    try {
      const response = await send("GET", "/v1/engines/events", undefined, AbortSignal.any([until, attempt.signal]));
      for await (const data of events(response, true)) {
        heard = Date.now();
        await receive(data);
      }
      failure.value = "The connection to the gateway ended.";
    } catch (error) {
      failure.value = attempt.signal.aborted ? "The gateway is silent." : (error as Error).message;
    } finally {
      clearInterval(watch);
      if (!until.aborted) connected.value = false;
    }
    await pause(RETRY_MS, until);
  }
}

async function receive(data: string): Promise<void> {
  lastEvent.value = Date.now();
  connected.value = true;
  failure.value = "";
  if (!data) return;
  const state = JSON.parse(data) as EngineState[] | QueueState;
  if (!Array.isArray(state)) {
    queue.value = state;
    return;
  }
  engines.value = state;
  note(engines.value, lastEvent.value);
  await loadModels();
}

// The list of models also depends on the key, so it is requested when an engine's models change.
let served = "";
async function loadModels(): Promise<void> {
  const present = JSON.stringify(engines.value?.map((each) => [each.state, each.models]));
  if (present === served) return;
  const list = await call<{ data: { id: string }[] }>("GET", "/v1/models");
  models.value = list.data.map((each) => each.id);
  served = present;
}

// An open stream outlives its key, so a revoked key is noticed here.
async function watchKey(until: AbortSignal): Promise<void> {
  while (!until.aborted) {
    try {
      identity.value = await call<ShownKey>("GET", "/v1/key");
    } catch {
      // a refused key leads to the sign-in, a lost gateway is reported by the stream
    }
    await pause(identity.value ? KEY_CHECK_MS : RETRY_MS, until);
  }
}

function pause(ms: number, until: AbortSignal): Promise<void> {
  return new Promise((done) => {
    const timer = setTimeout(done, ms);
    until.addEventListener("abort", () => (clearTimeout(timer), done()), { once: true });
  });
}
