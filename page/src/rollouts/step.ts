// What the metrics of a step say about its time and its tokens, and the timeline of all steps.
import { labelOf, MEMORY, PHASES } from "../jobs/groups";
import type { Row } from "../jobs/metrics";

export interface Phase {
  name: string;
  // Seconds since the begin of the step.
  begin: number;
  seconds: number;
}

export interface Share {
  // Weight versions; the last one may stand for all larger ones, as in "8+".
  versions: string;
  share: number;
}

// The order in which the phases of a step begin.
const ORDER = ["rollout", "score", "known", "train", "push", "store"];
const STALE = /^stale\/(\d+)\+?$/;
const GRADERS = "hidden/score";
const MICROSECONDS = 1e6;
// Steps of a timeline, the latest.
export const MOST_STEPS = 5000;

// Phases one after the other; one that ran in several parts has their sum.
export function phasesOf(row: Row): Phase[] {
  const names = Object.keys(row).filter((each) => each.startsWith(PHASES) && typeof row[each] === "number").map(labelOf);
  const rank = (name: string) => (ORDER.includes(name) ? ORDER.indexOf(name) : ORDER.length);
  let begin = 0;
  return names
    .sort((one, other) => rank(one) - rank(other) || one.localeCompare(other))
    .map((name) => {
      const seconds = row[PHASES + name] as number;
      begin += seconds;
      return { name, begin: begin - seconds, seconds };
    });
}

// Seconds of a step: its wall clock, or the sum of its phases where that is larger or all there is.
export function durationOf(row: Row, phases: Phase[]): number {
  const last = phases.at(-1);
  return Math.max(number(row, "seconds") ?? 0, last ? last.begin + last.seconds : 0);
}

// Seconds in which graders worked during other phases; the metrics do not say when.
export function gradersOf(row: Row): number {
  return number(row, GRADERS) ?? 0;
}

// Shares of a step's sampled tokens by their age in weight versions, from 0 on.
export function stalenessOf(row: Row): Share[] {
  return Object.keys(row)
    .filter((name) => STALE.test(name) && typeof row[name] === "number")
    .sort((one, other) => parseInt(one.slice(6), 10) - parseInt(other.slice(6), 10))
    .map((name) => ({ versions: name.slice(6), share: row[name] as number }));
}

// Steps as a Chrome trace, which Perfetto opens. Metrics have durations alone, so the steps lie side by side from 0 on:
// evaluations, checkpoints and pauses between them are left out.
export function traceOf(title: string, rows: Row[]): string {
  const events: object[] = [
    { ph: "M", name: "process_name", pid: 1, args: { name: title } },
    { ph: "M", name: "thread_name", pid: 1, tid: 1, args: { name: "first process" } },
  ];
  const slice = (name: string, begin: number, end: number, args: object) => {
    const ts = Math.round(begin * MICROSECONDS);
    events.push({ ph: "X", name, pid: 1, tid: 1, ts, dur: Math.round(end * MICROSECONDS) - ts, args });
  };
  const counter = (name: string, at: number, args: object) => events.push({ ph: "C", name, pid: 1, ts: Math.round(at * MICROSECONDS), args });
  let begin = 0;
  for (const row of rows.filter((each) => phasesOf(each).length).slice(-MOST_STEPS)) {
    const phases = phasesOf(row);
    const end = begin + durationOf(row, phases);
    slice(`step ${row.step}`, begin, end, { "seconds of graders during other phases": gradersOf(row) });
    for (const each of phases) slice(each.name, begin + each.begin, begin + each.begin + each.seconds, {});
    const reward = number(row, "reward");
    if (reward !== undefined) counter("reward", end, { reward });
    const memory = Object.entries(row).filter(([name, value]) => MEMORY.metrics.some((prefix) => name.startsWith(prefix)) && typeof value === "number");
    if (memory.length) counter("memory in bytes", end, Object.fromEntries(memory.map(([name, value]) => [labelOf(name), value])));
    begin = end;
  }
  return JSON.stringify({ displayTimeUnit: "ms", traceEvents: events });
}

function number(row: Row, name: string): number | undefined {
  return typeof row[name] === "number" ? row[name] : undefined;
}
