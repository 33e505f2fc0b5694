// Metrics of jobs, read as they arrive.
import { signal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import { connected } from "../state/live";
import { call } from "../state/api";
import type { Curve } from "../parts/thin";

export type Row = Record<string, number | string | null> & { step: number };

const POLL_MS = 1000;
const PAGE = 5000;
const BEFORE_FIRST = -1;

export class Metrics {
  readonly rows = signal<Row[] | null>(null);
  readonly problem = signal("");
  private reading = false;

  constructor(readonly job: string) {}

  // Rows of the steps since the last call.
  async poll(): Promise<void> {
    if (this.reading) return;
    this.reading = true;
    try {
      for (let more = true; more; ) {
        const old = this.rows.value ?? [];
        const after = old.at(-1)?.step ?? BEFORE_FIRST;
        const found = await call<{ data: Row[]; has_more: boolean }>("GET", `/v1/jobs/${encodeURIComponent(this.job)}/metrics?after=${after}&limit=${PAGE}`);
        if (found.data.length || this.rows.value === null) this.rows.value = [...old, ...found.data];
        more = found.has_more;
      }
      this.problem.value = "";
    } catch (error) {
      this.problem.value = (error as Error).message;
    } finally {
      this.reading = false;
    }
  }
}

// Metrics of each job, polled while `live`, and once more when a job has ended.
export function useMetrics(ids: string[], live: boolean): Metrics[] {
  const all = useMemo(() => ids.map((id) => new Metrics(id)), [ids.join(" ")]);
  useEffect(() => {
    const poll = () => void Promise.all(all.map((each) => each.poll()));
    poll();
    if (!live) return;
    const timer = setInterval(() => document.visibilityState === "visible" && poll(), POLL_MS);
    return () => clearInterval(timer);
  }, [all, live, connected.value]);
  return all;
}

// The values are divided by `scale`.
export function curve(rows: Row[], metric: string, name = metric, scale = 1): Curve {
  const found = rows.filter((row) => typeof row[metric] === "number");
  return { name, x: found.map((row) => row.step), y: found.map((row) => (row[metric] as number) / scale) };
}

// Names of all numbers of the rows.
export function metricNames(rows: Row[]): string[] {
  const names = new Set<string>();
  for (const row of rows) for (const name in row) if (typeof row[name] === "number") names.add(name);
  names.delete("step");
  return [...names].sort();
}
