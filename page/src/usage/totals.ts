// Sums of usage by day and by model or key.
import type { UsageRow } from "../state/api";

export const MEASURES = { output_tokens: "Output tokens", input_tokens: "Input tokens", requests: "Requests" } as const;
export type Measure = keyof typeof MEASURES;

export interface Group {
  name: string;
  total: number;
  days: Map<string, number>;
}

// More groups than colours are shown as one.
export const MOST_GROUPS = 7;
const DAY_MS = 86_400_000;

export function daysBack(count: number, today = Date.now()): string[] {
  return Array.from({ length: count }, (_, place) => new Date(today - (count - 1 - place) * DAY_MS).toISOString().slice(0, 10));
}

export function sum(rows: UsageRow[], measure: Measure): number {
  return rows.reduce((total, row) => total + row[measure], 0);
}

// The largest groups first; the smallest ones as "other".
export function grouped(rows: UsageRow[], by: "model" | "key", measure: Measure): Group[] {
  const found = new Map<string, Group>();
  for (const row of rows) add(found, row[by], row.day, row[measure]);
  const sorted = [...found.values()].sort((one, other) => other.total - one.total);
  if (sorted.length <= MOST_GROUPS) return sorted;
  const rest = new Map<string, Group>();
  for (const group of sorted.slice(MOST_GROUPS - 1)) {
    for (const [day, value] of group.days) add(rest, "other", day, value);
  }
  return [...sorted.slice(0, MOST_GROUPS - 1), ...rest.values()];
}

function add(groups: Map<string, Group>, name: string, day: string, value: number): void {
  const group = groups.get(name) ?? { name, total: 0, days: new Map() };
  group.total += value;
  group.days.set(day, (group.days.get(day) ?? 0) + value);
  groups.set(name, group);
}
