// One job: figures, curves as they arrive, log, events, settings.
import { useSignal } from "@preact/signals";
import { useMemo } from "preact/hooks";
import { LogView } from "../logs/view";
import { Log } from "../logs/log";
import { age, significant } from "../parts/format";
import { Content } from "../parts/loaded";
import { Empty, Problem } from "../parts/states";
import { Stat } from "../parts/stat";
import { Tabs } from "../parts/tabs";
import { Rollouts } from "../rollouts/view";
import { call, type Job } from "../state/api";
import { now } from "../state/live";
import { useLoaded } from "../state/load";
import { loadNames } from "../state/names";
import { go, link, params, setParams } from "../state/route";
import { Actions } from "./actions";
import { Curves } from "./curves";
import { Events } from "./events";
import { duration, ended, modelOf, remaining, titleOf, toneOf } from "./job";
import { PLAIN } from "./methods";
import { reader } from "./output";
import { Settings } from "./settings";
import { type Metrics, useMetrics } from "./metrics";

const POLL_MS = 1000;
const TABS = ["Curves", "Rollouts", "Log", "Events", "Settings"] as const;

export function Detail({ id }: { id: string }) {
  const done = useSignal(false);
  const problem = useSignal("");
  useLoaded(loadNames);
  const loaded = useLoaded(
    async () => {
      const job = await call<Job>("GET", `/v1/jobs/${encodeURIComponent(id)}`);
      done.value = ended(job);
      return job;
    },
    [id, done.value],
    done.value ? 0 : POLL_MS,
  );
  const [metrics] = useMetrics([id], !done.value) as [Metrics];
  const job = loaded.data;
  return (
    <>
      <div class="row title">
        <h1>{job ? titleOf(job) : "Job"}</h1>
        {job && <span class={`chip ${toneOf(job)}`}>{job.state}</span>}
        <a href={link("jobs", { job: "", tab: "" })}>All jobs</a>
        <span class="space" />
        {job && (
          <Actions
            job={job}
            problem={problem}
            changed={(_, action) => (action === "delete" ? go("jobs", { job: "", tab: "" }) : void loaded.reload())}
          />
        )}
      </div>
      <Problem text={problem.value} />
      <Content of={loaded} name="the job">
        {(found) => (
          <>
            <Reason job={found} />
            <Figures job={found} metrics={metrics} />
            <Parts job={found} metrics={metrics} />
          </>
        )}
      </Content>
    </>
  );
}

function Reason({ job }: { job: Job }) {
  const model = modelOf(job);
  if (model) {
    return (
      <p>
        The model answers as <code class="wide">{model}</code>. <a href={link("playground", { model })}>Open it in the playground</a>, or{" "}
        <a href={link("playground", { model: [job.model, model] })}>compare it with {job.model}</a>.
      </p>
    );
  }
  if (!job.error) return null;
  return (
    <p class="error" role="alert">
      {String(job.error.message)}
    </p>
  );
}

function Figures({ job, metrics }: { job: Job; metrics: Metrics }) {
  const left = remaining(job, now.value);
  const rows = metrics.rows.value ?? [];
  const main = job.kind === "rl" ? "reward" : "loss";
  const latest = rows.findLast((row) => typeof row[main] === "number")?.[main];
  const waited = ((job.started ?? job.ended ?? now.value / 1000) - job.created) * 1000;
  return (
    <div class="stats">
      <Stat name="Step" value={significant(job.step ?? 0)} unit={job.steps ? `of ${significant(job.steps)}` : ""} />
      {latest !== undefined && <Stat name={main === "loss" ? "Loss" : "Reward"} value={significant(latest as number)} unit="latest" />}
      {Object.entries(job.result ?? {}).map(([name, value]) => (
        <Stat key={name} name={name} value={significant(value)} unit="result" />
      ))}
      {left && <Stat name="Time left" value={left} unit="about" />}
      <Stat name="Running" value={job.started === null ? "–" : age(duration(job, now.value))} unit="since its start" />
      <Stat name="Waited" value={age(waited)} unit="before its start" />
      <Stat name="Attempt" value={String(job.attempt)} unit={job.launcher} tone={job.attempt > 1 ? "warn" : ""} />
    </div>
  );
}

function Parts({ job, metrics }: { job: Job; metrics: Metrics }) {
  const named = params.value.get("tab") ?? "";
  const tabs = TABS.filter((each) => (each !== "Rollouts" || job.kind === "rl") && (each !== "Curves" || !PLAIN.includes(job.kind)));
  const tab = tabs.find((each) => each === named) ?? tabs[0]!;
  return (
    <>
      <div class="row parts">
        <Tabs label="Part of the job" names={tabs} chosen={tab} choose={(name) => setParams({ tab: name === tabs[0] ? "" : name })} />
      </div>
      {tab === "Curves" && <Curves job={job} metrics={metrics} />}
      {tab === "Rollouts" && <Rollouts job={job} metrics={metrics} />}
      {tab === "Log" && <Output job={job} />}
      {tab === "Events" && <Events job={job} />}
      {tab === "Settings" && <Settings job={job} />}
    </>
  );
}

function Output({ job }: { job: Job }) {
  const named = Number(params.value.get("attempt"));
  const attempt = named >= 1 && named <= job.attempt ? named : job.attempt;
  const log = useMemo(() => new Log(reader(job.id, attempt)), [job.id, attempt]);
  if (!job.attempt) {
    return (
      <Empty icon="train" title="No log yet">
        <p>The job waits in the queue. Its log begins with its first attempt.</p>
      </Empty>
    );
  }
  const tools = job.attempt > 1 && (
    <select aria-label="Attempt" value={String(attempt)} onChange={(event) => setParams({ attempt: event.currentTarget.value })}>
      {Array.from({ length: job.attempt }, (_, place) => (
        <option key={place} value={String(place + 1)}>
          attempt {place + 1}
        </option>
      ))}
    </select>
  );
  return <LogView key={attempt} log={log} name={titleOf(job)} tools={tools} ended={ended(job) || attempt < job.attempt} />;
}
