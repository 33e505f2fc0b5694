// Sampled answers of an RL job, step by step: prompt, answers, rewards and advantages.
import { useSignal } from "@preact/signals";
import { useMemo } from "preact/hooks";
import { percent, significant } from "../parts/format";
import { Icon } from "../parts/icon";
import { Content } from "../parts/loaded";
import { Empty, Problem as Failed } from "../parts/states";
import { Stat } from "../parts/stat";
import { call, type Job } from "../state/api";
import { useLoaded } from "../state/load";
import { params, setParams } from "../state/route";
import { One } from "../jobs/curves";
import { type Group as Metric, MEMORY, metricsOf, ZERO_VARIANCE } from "../jobs/groups";
import { ended, titleOf } from "../jobs/job";
import { metricNames, type Metrics, type Row } from "../jobs/metrics";
import { Profile } from "./profile";
import { type Alarm, type Group, groupsOf, mean, type Page, type Rollout } from "./rollout";
import { Sample } from "./sample";
import "./style.css";

const POLL_MS = 3000;
const PAGE = 100;
const MOST = 500;
const CHARTS: Metric[] = [
  {
    title: "Reward",
    explain: "Mean reward of each step's samples. Choose a step below to read what was sampled there. Flat from the start: the task is too hard, or the grader never rewards.",
    metrics: ["reward", "held_out/reward"],
  },
  ZERO_VARIANCE,
  MEMORY,
];
const SORTS = { "": "by prompt", reward: "highest reward first", advantage: "highest advantage first", tokens: "longest first" };

export function Rollouts({ job, metrics }: { job: Job; metrics: Metrics }) {
  const chosen = params.value.get("step") ?? "";
  const sort = params.value.get("sort") ?? "";
  const where = params.value.get("where") ?? "";
  const live = ended(job) ? 0 : POLL_MS;
  const path = `/v1/jobs/${encodeURIComponent(job.id)}`;
  const alarms = useLoaded(async () => (await call<{ data: Alarm[] }>("GET", `${path}/alarms`)).data, [job.id], live);
  const loaded = useLoaded(() => load(path, chosen, sort, where), [job.id, chosen, sort, where], chosen ? 0 : live);
  const rows = metrics.rows.value;
  return (
    <div class="rollouts">
      <Alarms alarms={alarms.data ?? []} />
      <Failed text={metrics.problem.value} />
      <Charts rows={rows ?? []} />
      <Content of={loaded} name="rollouts">
        {(page) =>
          page.steps.length ? (
            <Step job={job} rows={rows ?? []} page={page} chosen={chosen} sort={sort} where={where} />
          ) : (
            <>
              <Profile title={titleOf(job)} step={rows?.at(-1)?.step ?? 0} rows={rows ?? []} />
              <None job={job} />
            </>
          )
        }
      </Content>
    </div>
  );
}

function Charts({ rows }: { rows: Row[] }) {
  const known = useMemo(() => metricNames(rows), [rows]);
  const shown = CHARTS.map((each) => ({ ...each, names: metricsOf(each, known) })).filter((each) => each.names.length);
  if (!shown.length) return null;
  return (
    <div class="charts">
      {shown.map((each) => (
        <One key={each.title} {...each} rows={rows} />
      ))}
    </div>
  );
}

interface Found {
  steps: number[];
  step: number;
  rollouts: Rollout[];
  more: boolean;
}

async function load(path: string, chosen: string, sort: string, where: string): Promise<Found> {
  let page = await call<Page>("GET", `${path}/rollouts?limit=1`);
  const steps = page.steps;
  const step = steps.includes(Number(chosen)) && chosen ? Number(chosen) : (steps.at(-1) ?? 0);
  const rollouts: Rollout[] = [];
  let more = steps.length > 0;
  while (more && rollouts.length < MOST) {
    const query = new URLSearchParams({ step: String(step), limit: String(PAGE), ...(sort ? { sort } : {}) });
    for (const condition of where.split(",").map((each) => each.trim())) if (condition) query.append("where", condition);
    if (rollouts.length) query.set("after", rollouts.at(-1)!.id);
    page = await call<Page>("GET", `${path}/rollouts?${query}`);
    rollouts.push(...page.data);
    more = page.has_more;
  }
  return { steps, step, rollouts, more };
}

interface StepProps {
  job: Job;
  rows: Row[];
  page: Found;
  chosen: string;
  sort: string;
  where: string;
}

function Step({ job, rows, page: { steps, step, rollouts, more }, chosen, sort, where }: StepProps) {
  const typed = useSignal(where);
  const place = steps.indexOf(step);
  const show = (at: number) => setParams({ step: at >= steps.length - 1 ? "" : String(steps[Math.max(0, at)]) });
  const groups = groupsOf(rollouts);
  return (
    <section aria-label={`Samples of step ${step}`}>
      <div class="row wrap stepper">
        <button type="button" aria-label="Previous step" disabled={place <= 0} onClick={() => show(place - 1)}>
          ←
        </button>
        <input
          type="range"
          aria-label="Step"
          aria-valuetext={`step ${step}`}
          min={0}
          max={steps.length - 1}
          value={place}
          onInput={(event) => show(Number(event.currentTarget.value))}
        />
        <button type="button" aria-label="Next step" disabled={place >= steps.length - 1} onClick={() => show(place + 1)}>
          →
        </button>
        <strong>Step {step}</strong>
        <span class="muted">
          {chosen ? `of ${steps.length} stored, ${steps[0]} to ${steps.at(-1)}` : "the latest"}
        </span>
      </div>
      <Profile title={titleOf(job)} step={step} rows={rows} />
      <form class="row wrap toolbar" onSubmit={(event) => (event.preventDefault(), setParams({ where: typed.value }))}>
        <input
          type="search"
          aria-label="Conditions"
          placeholder="reward>0.5, text~sorry"
          title="Names are reward, advantage, tokens, finish_reason, prompt, text and parts of the reward; signs are > >= < <= = != and ~ (contains)."
          value={typed.value}
          onInput={(event) => (typed.value = event.currentTarget.value)}
          onChange={() => setParams({ where: typed.value })}
        />
        <select aria-label="Order" value={sort} onChange={(event) => setParams({ sort: event.currentTarget.value })}>
          {Object.entries(SORTS).map(([value, text]) => (
            <option key={value} value={value}>
              {text}
            </option>
          ))}
        </select>
      </form>
      <Figures rollouts={rollouts} groups={groups} />
      {rollouts.length === 0 && <p class="muted">No sample of this step meets the conditions.</p>}
      {groups.map((group) => (
        <Problem key={group.samples[0]!.id} group={group} />
      ))}
      {more && <p class="muted">The first {MOST} samples are shown: narrow the conditions.</p>}
    </section>
  );
}

function Figures({ rollouts, groups }: { rollouts: Rollout[]; groups: Group[] }) {
  const rewards = rollouts.map((each) => each.reward).filter((each) => each !== null);
  const flat = groups.filter((each) => each.flat).length;
  const cut = rollouts.filter((each) => each.finish_reason === "length").length;
  return (
    <div class="stats">
      <Stat name="Reward" value={significant(mean(rewards))} unit={`mean of ${rewards.length}`} />
      <Stat name="Equal rewards" value={`${flat} of ${groups.length}`} unit="prompts, which teach nothing" tone={flat > groups.length / 2 ? "warn" : ""} />
      <Stat name="Length" value={significant(mean(rollouts.map((each) => each.sampled)))} unit="tokens, mean" />
      <Stat name="Cut off" value={rollouts.length ? percent(cut / rollouts.length) : "–"} unit="at the token limit" tone={cut > rollouts.length / 2 ? "warn" : ""} />
    </div>
  );
}

function Problem({ group }: { group: Group }) {
  return (
    <article class="card problem" aria-label={`Prompt ${group.problem}`}>
      <header>
        <p class="text prompt" dir="auto" tabIndex={0}>
          {group.prompt}
        </p>
        <p class="row wrap small muted">
          <span>mean reward {significant(group.mean)}</span>
          {group.flat && <span class="chip warn">all rewards equal</span>}
        </p>
      </header>
      <ul class="samples">
        {group.samples.map((each) => (
          <Sample key={each.id} rollout={each} />
        ))}
      </ul>
    </article>
  );
}

function Alarms({ alarms }: { alarms: Alarm[] }) {
  const standing = alarms.filter((each) => !each.over);
  if (!standing.length) return null;
  return (
    <ul class="alarms" aria-label="Alarms">
      {standing.map((each) => (
        <li key={`${each.alarm} ${each.step}`} class="banner">
          <Icon name="warning" />
          <span>
            <strong>{each.alarm.replaceAll("_", " ")}</strong>: since step {each.since} {each.saw}. To do: {each.advice}.
          </span>
        </li>
      ))}
    </ul>
  );
}

function None({ job }: { job: Job }) {
  return (
    <Empty icon="chart" title={ended(job) ? "No rollouts are stored" : "No rollouts yet"}>
      <p>{ended(job) ? "Stored samples were deleted, or the job ended before its first step." : "The samples of each step appear here with their rewards as soon as the first step is done."}</p>
    </Empty>
  );
}
