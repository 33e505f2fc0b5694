// Engines and models, updated through server-sent events; the connection is renewed when it is lost.
import { computed, signal } from "@preact/signals";
import { call, type EngineState, events, key, send, signInNeeded } from "./api";

export const engines = signal<EngineState[] | null>(null);
export const models = signal<string[] | null>(null);
export const lastEvent = signal(0);
export const connected = signal(false);
export const failure = signal("");
export const history = new Map<string, { running: number[]; waiting: number[] }>();
export const stale = computed(() => !connected.value && lastEvent.value > 0);

const POINTS = 120;
const RETRY_MS = 2000;
let stop = new AbortController();

export function restart(): void {
  served = "";
  stop.abort();
  stop = new AbortController();
  void follow(stop.signal);
}

async function follow(until: AbortSignal): Promise<void> {
  while (!until.aborted) {
    try {
      const response = await send("GET", "/v1/engines/events", undefined, until);
      connected.value = true;
      failure.value = "";
      for await (const data of events(response)) {
        note(JSON.parse(data) as EngineState[]);
        await loadModels();
      }
      failure.value = "The connection to the gateway ended.";
    } catch (error) {
      if (until.aborted) return;
      failure.value = (error as Error).message;
    }
    connected.value = false;
    if (signInNeeded.value && !key.value) return;
    await new Promise((done) => setTimeout(done, RETRY_MS));
  }
}

// The list of models also depends on the key, so it is requested when an engine's models change.
let served = "";
async function loadModels(): Promise<void> {
  const now = JSON.stringify(engines.value?.map((each) => [each.state, each.models]));
  if (now === served && models.value !== null) return;
  const list = await call<{ data: { id: string }[] }>("GET", "/v1/models");
  models.value = list.data.map((each) => each.id);
  served = now;
}

function note(found: EngineState[]): void {
  engines.value = found;
  lastEvent.value = Date.now();
  for (const engine of found) {
    const past = history.get(engine.id) ?? { running: [], waiting: [] };
    history.set(engine.id, {
      running: [...past.running, engine.running].slice(-POINTS),
      waiting: [...past.waiting, engine.waiting].slice(-POINTS),
    });
  }
}
