// All jobs: state, progress, owner, duration; filters, and the choice of jobs to compare.
import { useSignal } from "@preact/signals";
import { age } from "../parts/format";
import { Icon } from "../parts/icon";
import { Content } from "../parts/loaded";
import { Progress } from "../parts/progress";
import { Empty, Problem } from "../parts/states";
import { type ColumnOf, Table } from "../parts/table";
import { call, type Job } from "../state/api";
import { now } from "../state/live";
import { useLoaded } from "../state/load";
import { loadNames, nameOf } from "../state/names";
import { link, params, setParams } from "../state/route";
import { Actions } from "./actions";
import { duration, ended, GROUPS, remaining, titleOf, toneOf } from "./job";
import { METHODS } from "./methods";

const POLL_MS = 2000;
const PAGE = 100;
export const MOST_COMPARED = 6;

interface Found {
  jobs: Job[];
  more: boolean;
}

export function List() {
  const problem = useSignal("");
  const pages = useSignal(1);
  const state = params.value.get("state") ?? "";
  const kind = params.value.get("kind") ?? "";
  const text = params.value.get("text") ?? "";
  useLoaded(loadNames);
  const loaded = useLoaded(() => load(state, kind, pages.value), [state, kind, pages.value], POLL_MS);
  const filtered = Boolean(state || kind || text);
  return (
    <>
      <Problem text={problem.value} />
      <Content of={loaded} name="jobs">
        {({ jobs, more }) => {
          if (!jobs.length && !filtered) return <NoJobs />;
          const shown = jobs.filter((job) => matches(job, text));
          return (
            <>
              <Table
                label="Jobs"
                columns={columns({ problem, changed: () => void loaded.reload() })}
                rows={shown}
                id={(job) => job.id}
                sort={7}
                down
                tools={<Filters state={state} kind={kind} text={text} />}
              />
              {!shown.length && <p class="muted">No job matches the filters.</p>}
              {more && (
                <button type="button" onClick={() => (pages.value += 1)}>
                  Older jobs
                </button>
              )}
            </>
          );
        }}
      </Content>
    </>
  );
}

async function load(state: string, kind: string, pages: number): Promise<Found> {
  const jobs: Job[] = [];
  let more = true;
  for (let page = 0; page < pages && more; page++) {
    const query = new URLSearchParams({ limit: String(PAGE) });
    if (kind) query.set("kind", kind);
    for (const each of GROUPS[state] ?? []) query.append("state", each);
    if (jobs.length) query.set("after", jobs.at(-1)!.id);
    const found = await call<{ data: Job[]; has_more: boolean }>("GET", `/v1/jobs?${query}`);
    jobs.push(...found.data);
    more = found.has_more;
  }
  return { jobs, more };
}

function matches(job: Job, text: string): boolean {
  const whole = [job.id, job.name, job.hash, job.model, job.kind, nameOf(job.owner)].join(" ").toLowerCase();
  return text.toLowerCase().split(/\s+/).every((word) => whole.includes(word));
}

function Filters({ state, kind, text }: { state: string; kind: string; text: string }) {
  return (
    <>
      <input type="search" aria-label="Filter by name, model or owner" placeholder="Name, model or owner" value={text} onInput={(event) => setParams({ text: event.currentTarget.value })} />
      <select aria-label="State" value={state} onChange={(event) => setParams({ state: event.currentTarget.value })}>
        <option value="">all states</option>
        {Object.keys(GROUPS).map((each) => (
          <option key={each}>{each}</option>
        ))}
      </select>
      <select aria-label="Kind" value={kind} onChange={(event) => setParams({ kind: event.currentTarget.value })}>
        <option value="">all kinds</option>
        {Object.keys(METHODS).map((each) => (
          <option key={each}>{each}</option>
        ))}
      </select>
    </>
  );
}

function columns(how: Omit<Parameters<typeof Actions>[0], "job">): ColumnOf<Job>[] {
  return [
    { name: "Compare", value: () => "", actions: true, show: (job) => <Chosen job={job} /> },
    {
      name: "Name",
      value: titleOf,
      show: (job) => (
        <a class="wide" href={link("jobs", { job: job.id })}>
          {titleOf(job)}
        </a>
      ),
    },
    { name: "Kind", value: (job) => job.kind },
    { name: "Model", value: (job) => job.model },
    { name: "State", value: (job) => job.state, show: (job) => <State job={job} /> },
    { name: "Progress", value: (job) => (job.step ?? 0) / (job.steps || 1), show: (job) => <Steps job={job} /> },
    { name: "Duration", value: (job) => duration(job, now.value), show: (job) => (job.started === null ? "–" : age(duration(job, now.value))), number: true },
    { name: "Submitted", value: (job) => job.created, show: (job) => `${age(now.value - job.created * 1000)} ago` },
    { name: "Owner", value: (job) => nameOf(job.owner) },
    { name: "Actions", value: () => "", actions: true, show: (job) => <Actions job={job} {...how} /> },
  ];
}

function Chosen({ job }: { job: Job }) {
  const chosen = params.value.getAll("compare");
  const has = chosen.includes(job.id);
  const toggle = () => setParams({ compare: has ? chosen.filter((each) => each !== job.id) : [...chosen, job.id] });
  return <input type="checkbox" aria-label={`Compare ${titleOf(job)}`} checked={has} disabled={!has && chosen.length >= MOST_COMPARED} onChange={toggle} />;
}

export function State({ job }: { job: Job }) {
  return (
    <>
      <span class={`chip ${toneOf(job)}`}>{job.state}</span>
      {job.error && <p class="error small reason">{String(job.error.message)}</p>}
    </>
  );
}

export function Steps({ job }: { job: Job }) {
  if (!job.steps) return <span class="muted">{ended(job) ? "–" : "no step yet"}</span>;
  const left = remaining(job, now.value);
  return (
    <>
      <Progress label={`Progress of ${titleOf(job)}`} done={job.step ?? 0} total={job.steps} />
      {left && <span class="muted small">{left} left</span>}
    </>
  );
}

function NoJobs() {
  return (
    <Empty icon="train" title="No jobs">
      <p>A job trains a model on your data: fine-tuning, preferences, rewards or reinforcement learning. Its model answers under this URL when it has succeeded.</p>
      <p>
        <a class="button main" href={link("jobs", { new: "1" })}>
          <Icon name="plus" /> New job
        </a>
      </p>
      <p>Or from a shell:</p>
      <pre tabIndex={0}>rondo train sft --model demo --data facts.jsonl</pre>
    </Empty>
  );
}
