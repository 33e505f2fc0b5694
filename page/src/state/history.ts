// Load of each engine over the last minutes, for sparklines.
import type { EngineState } from "./api";

export interface Sample {
  time: number;
  running: number;
  waiting: number;
  kv: number | null;
  rate: number | null;
}

const LONGEST_MS = 10 * 60_000;
const samples = new Map<string, Sample[]>();

export function note(engines: EngineState[], time: number): void {
  for (const engine of engines) {
    const recent = samplesOf(engine.id).filter((each) => each.time > time - LONGEST_MS);
    recent.push({ time, running: engine.running, waiting: engine.waiting, kv: engine.kv_usage, rate: engine.tokens_per_second });
    samples.set(engine.id, recent);
  }
}

export function samplesOf(engine: string): Sample[] {
  return samples.get(engine) ?? [];
}
