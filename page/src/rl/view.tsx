// Reinforcement learning: its jobs with reward, alarms and groups without a signal; each opens its rollouts.
import { useSignal } from "@preact/signals";
import { useMemo } from "preact/hooks";
import { State, Steps } from "../jobs/list";
import { titleOf } from "../jobs/job";
import { age, percent, significant } from "../parts/format";
import { Icon } from "../parts/icon";
import { Content } from "../parts/loaded";
import { Sparkline } from "../parts/sparkline";
import { Empty } from "../parts/states";
import { type ColumnOf, Table } from "../parts/table";
import { call, type Job } from "../state/api";
import { now, stale } from "../state/live";
import { useLoaded } from "../state/load";
import { go, link } from "../state/route";
import { Latest, newest, type Run } from "./latest";
import "./style.css";

const POLL_MS = 3000;
const PAGE = 20;
const FORM = { new: "rl", job: "", curves: "" };

interface Found {
  runs: Run[];
  more: boolean;
}

export default function Rl() {
  const pages = useSignal(1);
  const latest = useMemo(() => new Latest(), []);
  const loaded = useLoaded(() => load(latest, pages.value), [pages.value], POLL_MS);
  return (
    <>
      <div class="row title">
        <h1>RL</h1>
        <span class="space" />
        <button type="button" class="main" disabled={stale.value} onClick={() => go("jobs", FORM)}>
          <Icon name="plus" /> New RL job
        </button>
      </div>
      <Content of={loaded} name="RL jobs">
        {({ runs, more }) =>
          runs.length ? (
            <>
              <Table label="RL jobs" columns={COLUMNS} rows={runs} id={(run) => run.job.id} sort={COLUMNS.length - 1} down />
              {more && (
                <button type="button" onClick={() => (pages.value += 1)}>
                  Older jobs
                </button>
              )}
            </>
          ) : (
            <None />
          )
        }
      </Content>
    </>
  );
}

async function load(latest: Latest, pages: number): Promise<Found> {
  const jobs: Job[] = [];
  let more = true;
  for (let page = 0; page < pages && more; page++) {
    const after = jobs.length ? `&after=${encodeURIComponent(jobs.at(-1)!.id)}` : "";
    const found = await call<{ data: Job[]; has_more: boolean }>("GET", `/v1/jobs?kind=rl&limit=${PAGE}${after}`);
    jobs.push(...found.data);
    more = found.has_more;
  }
  return { runs: await Promise.all(jobs.map((job) => latest.of(job))), more };
}

const COLUMNS: ColumnOf<Run>[] = [
  {
    name: "Job",
    value: ({ job }) => titleOf(job),
    show: ({ job }) => (
      <>
        <a class="wide" href={link("jobs", { job: job.id, tab: "Rollouts", new: "", curves: "", step: "", where: "", sort: "" })}>
          {titleOf(job)}
        </a>
        <br />
        <State job={job} />
      </>
    ),
  },
  { name: "Reward", value: ({ rows }) => newest(rows, "reward") ?? "", show: (run) => <Reward run={run} /> },
  { name: "Alarms", value: ({ rows }) => newest(rows, "alarms") ?? "", show: (run) => <Standing run={run} /> },
  { name: "Zero variance", value: ({ rows }) => newest(rows, "equal_groups") ?? "", show: ({ rows }) => share(newest(rows, "equal_groups")), number: true },
  { name: "Step", value: ({ job }) => (job.step ?? 0) / (job.steps || 1), show: ({ job }) => <Steps job={job} /> },
  { name: "Model", value: ({ job }) => job.model },
  { name: "Submitted", value: ({ job }) => job.created, show: ({ job }) => `${age(now.value - job.created * 1000)} ago` },
];

function Reward({ run: { job, rows, problem } }: { run: Run }) {
  const scored = rows.filter((row) => typeof row.reward === "number");
  if (problem) return <p class="error small reason">{problem}</p>;
  if (!scored.length) return <span class="muted">–</span>;
  const values = scored.map((row) => row.reward as number);
  return (
    <span class="row reward">
      <strong>{significant(values.at(-1))}</strong>
      {values.length > 1 && <Sparkline label={`Reward of ${titleOf(job)}`} times={scored.map((row) => row.step)} lines={[{ name: "latest", values }]} top={0} show={significant} />}
    </span>
  );
}

function Standing({ run: { rows } }: { run: Run }) {
  const count = newest(rows, "alarms");
  if (count === null) return <span class="muted">–</span>;
  if (!count) return <span class="muted">none</span>;
  return (
    <span class="chip warn">
      <Icon name="warning" /> {count}
    </span>
  );
}

function share(value: number | null): string {
  return value === null ? "–" : percent(value);
}

function None() {
  return (
    <Empty icon="loop" title="No RL jobs">
      <p>Reinforcement learning samples answers, grades them and makes the better ones more likely. Rewards, alarms and every sampled answer appear here while a job runs.</p>
      <p>
        <a class="button main" href={link("jobs", FORM)}>
          <Icon name="plus" /> New RL job
        </a>
      </p>
      <p>Or from a shell:</p>
      <pre tabIndex={0}>rondo rl --model demo --task reverse --submit</pre>
    </Empty>
  );
}
