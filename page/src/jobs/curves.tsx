// Curves of one job, grouped by what they show.
import { useMemo } from "preact/hooks";
import { Chart } from "../parts/chart";
import { Empty, Problem, Skeleton } from "../parts/states";
import type { Job } from "../state/api";
import { params, setParams } from "../state/route";
import { GROUPS, labelOf, metricsOf } from "./groups";
import { ended } from "./job";
import { curve, metricNames, type Metrics, type Row } from "./metrics";

const SMOOTHING = { "": "no smoothing", "5": "mean of 5 steps", "20": "mean of 20 steps", "100": "mean of 100 steps" };

export function Curves({ job, metrics }: { job: Job; metrics: Metrics }) {
  const rows = metrics.rows.value;
  const known = useMemo(() => metricNames(rows ?? []), [rows]);
  if (rows === null && metrics.problem.value) return <Problem text={metrics.problem.value} />;
  if (rows === null) return <Skeleton heights={["tall", "tall"]} label="Loading metrics" />;
  if (rows.length === 0) {
    return (
      <Empty icon="chart" title={ended(job) ? "No metrics" : "No step yet"}>
        <p>{ended(job) ? "The job ended before its first step: its log and events have the reason." : "Curves appear with the first step. Until then, the log shows what the job does."}</p>
      </Empty>
    );
  }
  const more = params.value.get("metric") ?? "";
  return (
    <>
      <div class="row toolbar wrap">
        <Smoothing />
        <select aria-label="Another metric" value={more} onChange={(event) => setParams({ metric: event.currentTarget.value })}>
          <option value="">another metric</option>
          {known.map((each) => (
            <option key={each}>{each}</option>
          ))}
        </select>
        <Problem text={metrics.problem.value} />
      </div>
      <div class="charts">
        {known.includes(more) && <One title={more} explain="A metric of your choice." rows={rows} names={[more]} logs />}
        {GROUPS.map((group) => {
          const names = metricsOf(group, known);
          return names.length > 0 && <One key={group.title} {...group} rows={rows} names={names} />;
        })}
      </div>
    </>
  );
}

export function smoothing(): number {
  return Number(params.value.get("smooth")) || 0;
}

export function Smoothing() {
  return (
    <select aria-label="Smoothing" value={params.value.get("smooth") ?? ""} onChange={(event) => setParams({ smooth: event.currentTarget.value })}>
      {Object.entries(SMOOTHING).map(([value, text]) => (
        <option key={value} value={value}>
          {text}
        </option>
      ))}
    </select>
  );
}

interface OneProps {
  title: string;
  explain: string;
  rows: Row[];
  names: string[];
  unit?: string;
  scale?: number;
  zero?: boolean;
  logs?: boolean;
  stacked?: boolean;
}

export function One({ rows, names, scale, ...chart }: OneProps) {
  const curves = useMemo(() => names.map((name) => curve(rows, name, labelOf(name), scale)), [rows, names.join("\n")]);
  return <Chart {...chart} curves={curves} smooth={chart.stacked ? 0 : smoothing()} />;
}
