// What the view knows about jobs: words, tones, durations, and which actions a state allows.
import { age } from "../parts/format";
import { call, type Job } from "../state/api";
import { PLAIN } from "./methods";

export const STATES = ["queued", "starting", "running", "pausing", "paused", "succeeded", "failed", "cancelled"] as const;
export const GROUPS: Record<string, string[]> = {
  open: ["queued", "starting", "running", "pausing", "paused"],
  succeeded: ["succeeded"],
  failed: ["failed"],
  cancelled: ["cancelled"],
};
const FINAL = ["succeeded", "failed", "cancelled"];
const TONES: Record<string, string> = { succeeded: "good", failed: "bad", paused: "warn" };

export type Action = "pause" | "resume" | "cancel" | "delete";

export function ended(job: Job): boolean {
  return FINAL.includes(job.state);
}

export function toneOf(job: Job): string {
  return TONES[job.state] ?? "";
}

export function titleOf(job: Job): string {
  return job.name ?? job.id;
}

// The name under which the resulting model answers.
export function modelOf(job: Job): string | null {
  return job.state === "succeeded" && !PLAIN.includes(job.kind) ? (job.name ?? job.hash) : null;
}

export function allowed(job: Job): Action[] {
  if (ended(job)) return ["delete"];
  if (job.state === "paused") return ["resume", "cancel"];
  return job.state === "pausing" ? ["cancel"] : ["pause", "cancel"];
}

// Milliseconds between start and end, or until now.
export function duration(job: Job, now: number): number {
  if (job.started === null) return 0;
  return (job.ended === null ? now : job.ended * 1000) - job.started * 1000;
}

// Time that is left, from the mean time of the steps so far.
export function remaining(job: Job, now: number): string {
  if (job.state !== "running" || !job.step || !job.steps || job.steps <= job.step) return "";
  return age((duration(job, now) / job.step) * (job.steps - job.step));
}

export const CONSEQUENCES: Record<Action, string> = {
  pause: "",
  resume: "",
  cancel: "Its process is ended at once, and the job cannot be resumed. Saved checkpoints stay.",
  delete: "Its entry, logs and uploaded data are removed. The resulting model stays.",
};

export async function change(job: Job, action: Action): Promise<Job> {
  const path = `/v1/jobs/${encodeURIComponent(job.id)}`;
  return action === "delete" ? call<Job>("DELETE", path) : call<Job>("POST", `${path}/${action}`);
}
