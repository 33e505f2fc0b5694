// Curves of several jobs on the same charts, and the settings in which they differ.
import { useSignal } from "@preact/signals";
import { useMemo } from "preact/hooks";
import { Chart, COLOURS } from "../parts/chart";
import { significant } from "../parts/format";
import { Icon } from "../parts/icon";
import { Content } from "../parts/loaded";
import { Skeleton } from "../parts/states";
import { type ColumnOf, Table } from "../parts/table";
import { call, type Job } from "../state/api";
import { useLoaded } from "../state/load";
import { link, params, setParams } from "../state/route";
import { Smoothing, smoothing } from "./curves";
import { GROUPS, metricsOf } from "./groups";
import { ended, titleOf } from "./job";
import { curve, metricNames, type Metrics, type Row, useMetrics } from "./metrics";
import { entries } from "./settings";

const POLL_MS = 2000;

export function Compare({ ids }: { ids: string[] }) {
  const done = useSignal(false);
  const load = async () => {
    const jobs = await Promise.all(ids.map((id) => call<Job>("GET", `/v1/jobs/${encodeURIComponent(id)}`)));
    done.value = jobs.every(ended);
    return jobs;
  };
  const loaded = useLoaded(load, [ids.join(" "), done.value], done.value ? 0 : POLL_MS);
  const metrics = useMetrics(ids, !done.value);
  return (
    <Content of={loaded} name="the jobs">
      {(jobs) => (jobs.length === ids.length ? <Compared jobs={jobs} metrics={metrics} /> : null)}
    </Content>
  );
}

function Compared({ jobs, metrics }: { jobs: Job[]; metrics: Metrics[] }) {
  const rows = metrics.map((each) => each.rows.value);
  const known = useMemo(() => [...new Set(rows.flatMap((each) => metricNames(each ?? [])))].sort(), rows);
  const names = unique(jobs.map(titleOf));
  if (rows.every((each) => each === null)) return <Skeleton heights={["bar", "tall"]} label="Loading metrics" />;
  const chosen = params.value.get("metric") ?? "";
  const shown = known.includes(chosen) ? [chosen] : GROUPS.filter((group) => !group.stacked).flatMap((group) => metricsOf(group, known).slice(0, 2));
  return (
    <>
      <div class="row toolbar wrap">
        <select aria-label="Metric" value={chosen} onChange={(event) => setParams({ metric: event.currentTarget.value })}>
          <option value="">main metrics</option>
          {known.map((each) => (
            <option key={each}>{each}</option>
          ))}
        </select>
        <Smoothing />
        {jobs.map((job, place) => (
          <span key={job.id} class={`chip key s${place % COLOURS}`}>
            <a href={link("jobs", { job: job.id, curves: "" })}>{names[place]}</a> {job.state}
            <button type="button" class="quiet" aria-label={`Remove ${names[place]} from the comparison`} onClick={() => setParams({ compare: jobs.filter((each) => each !== job).map((each) => each.id) })}>
              <Icon name="close" />
            </button>
          </span>
        ))}
      </div>
      {shown.length === 0 && <p class="muted">No job has a metric yet.</p>}
      <div class={shown.length === 1 ? "charts one" : "charts"}>
        {shown.map((metric) => (
          <Several key={metric} metric={metric} names={names} rows={rows} />
        ))}
      </div>
      <Differences jobs={jobs} names={names} rows={rows} />
    </>
  );
}

function Several({ metric, names, rows }: { metric: string; names: string[]; rows: (Row[] | null)[] }) {
  const group = GROUPS.find((each) => metricsOf(each, [metric]).length);
  const curves = useMemo(() => rows.map((each, place) => curve(each ?? [], metric, names[place], group?.scale)), [metric, names.join("\n"), ...rows]);
  return <Chart title={metric} explain={group?.explain ?? "A metric of your choice."} curves={curves} unit={group?.unit} zero={group?.zero} logs smooth={smoothing()} />;
}

interface Difference {
  name: string;
  values: string[];
}

function Differences({ jobs, names, rows }: { jobs: Job[]; names: string[]; rows: (Row[] | null)[] }) {
  const all = useSignal(false);
  const found = differences(jobs, all.value);
  const results = ["reward", "held_out/reward", "loss", "held_out/loss"].map((name) => ({ name: `latest ${name}`, values: rows.map((each) => significant(latest(each ?? [], name))) }));
  const columns: ColumnOf<Difference>[] = [
    { name: "Setting", value: (row) => row.name, show: (row) => <code>{row.name}</code> },
    ...names.map((name, place) => ({ name, value: (row: Difference) => row.values[place]! })),
  ];
  return (
    <Table
      label="Differences"
      columns={columns}
      rows={[...results.filter((each) => each.values.some((value) => value !== "–")), ...found]}
      id={(row) => row.name}
      tools={
        <label class="check">
          <input type="checkbox" checked={all.value} onChange={(event) => (all.value = event.currentTarget.checked)} />
          Equal settings as well
        </label>
      }
    />
  );
}

function latest(rows: Row[], name: string): number | null {
  return (rows.findLast((row) => typeof row[name] === "number")?.[name] as number | undefined) ?? null;
}

export function differences(jobs: Job[], all: boolean): Difference[] {
  const each = jobs.map((job) => new Map(entries(job).map(({ name, value }) => [name, value])));
  const names = [...new Set(each.flatMap((settings) => [...settings.keys()]))].sort();
  const found = names.map((name) => ({ name, values: each.map((settings) => settings.get(name) ?? "default") }));
  return found.filter(({ values }) => all || new Set(values).size > 1);
}

// Names that differ, for curves and columns.
export function unique(names: string[]): string[] {
  return names.map((name, place) => (names.indexOf(name) === place && names.lastIndexOf(name) === place ? name : `${name} (${place + 1})`));
}
