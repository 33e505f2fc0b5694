// The latest steps of RL jobs: reward, standing alarms, and the share of prompts without a signal.
import { ended } from "../jobs/job";
import type { Row } from "../jobs/metrics";
import { call, type Job } from "../state/api";

export interface Run {
  job: Job;
  rows: Row[];
  // Why its metrics could not be read.
  problem: string;
}

// Steps of a sparkline.
export const STEPS = 60;
const NAMES = ["reward", "alarms", "equal_groups"];

interface Known {
  rows: Row[];
  // No row is added any more.
  whole: boolean;
}

// Reads each row of a job once; a further attempt may repeat steps, so it is read anew.
export class Latest {
  private readonly known = new Map<string, Known>();

  async of(job: Job): Promise<Run> {
    const id = `${job.id} ${job.attempt}`;
    const known = this.known.get(id) ?? { rows: [], whole: !job.attempt };
    // Until a further attempt has removed the rows after its checkpoint, those of the attempt before are read.
    const old = !known.whole && (known.rows.at(-1)?.step ?? 0) > (job.step ?? 0) ? { rows: [], whole: false } : known;
    if (old.whole) return { job, rows: old.rows, problem: "" };
    try {
      const query = new URLSearchParams({ after: String(firstAfter(job, old.rows)), limit: "1000" });
      for (const name of NAMES) query.append("name", name);
      const found = await call<{ data: Row[]; has_more: boolean }>("GET", `/v1/jobs/${encodeURIComponent(job.id)}/metrics?${query}`);
      const rows = [...old.rows, ...found.data].slice(-STEPS);
      this.known.set(id, { rows, whole: ended(job) && !found.has_more });
      return { job, rows, problem: "" };
    } catch (error) {
      return { job, rows: old.rows, problem: (error as Error).message };
    }
  }
}

// The step after which rows are missing for a sparkline.
export function firstAfter(job: Job, rows: Row[]): number {
  return Math.max(rows.at(-1)?.step ?? 0, (job.step ?? 0) - STEPS, 0);
}

// The newest value of a metric.
export function newest(rows: Row[], name: string): number | null {
  return (rows.findLast((row) => typeof row[name] === "number")?.[name] as number | undefined) ?? null;
}
