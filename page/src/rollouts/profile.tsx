// One step of an RL job: where its time went, and how old the weights of its tokens were.
import type { ComponentChildren } from "preact";
import { labelOf, PHASES } from "../jobs/groups";
import type { Row } from "../jobs/metrics";
import { COLOURS } from "../parts/chart";
import { download } from "../parts/copy";
import { percent, seconds, significant } from "../parts/format";
import { durationOf, gradersOf, phasesOf, stalenessOf, traceOf } from "./step";

const WORDS: Record<string, string> = {
  rollout: "Rollouts",
  score: "Scoring",
  known: "Log-probabilities",
  train: "Training",
  push: "Weight push",
  store: "Storing",
};
// Share of a step from which on time outside of the phases or of graders is shown.
const VISIBLE = 0.005;

export function Profile({ title, step, rows }: { title: string; step: number; rows: Row[] }) {
  const row = rows.findLast((each) => each.step === step);
  if (!row) return null;
  return (
    <div class="charts profile">
      <Phases title={title} row={row} rows={rows} />
      <Staleness row={row} />
    </div>
  );
}

function Phases({ title, row, rows }: { title: string; row: Row; rows: Row[] }) {
  const phases = phasesOf(row);
  const whole = durationOf(row, phases);
  if (!phases.length || !whole) return null;
  const inside = phases.reduce((sum, each) => sum + each.seconds, 0);
  const lanes = phases.map((each) => ({ ...each, label: WORDS[each.name] ?? each.name, colour: colourOf(row, each.name) }));
  if (whole - inside > VISIBLE * whole) lanes.push({ name: "", label: "Between phases", begin: inside, seconds: whole - inside, colour: COLOURS - 1 });
  const graders = gradersOf(row);
  return (
    <Lanes
      title="Phases"
      unit={`step ${row.step}, ${seconds(whole)}`}
      explain="Phases of the first process in their order. One that ran in several parts is drawn as one. Long rollouts mean a slow engine or long answers; long scoring, a slow grader. The trace has the latest 5,000 steps, for ui.perfetto.dev."
      lanes={lanes.map((each) => ({ label: each.label, colour: each.colour, from: each.begin / whole, share: each.seconds / whole, text: `${seconds(each.seconds)}, ${percent(each.seconds / whole)}` }))}
      tools={
        <button type="button" class="quiet" aria-label="Perfetto trace of the steps" onClick={() => download(`${title}-trace.json`, traceOf(title, rows), "application/json")}>
          Perfetto trace
        </button>
      }
    >
      {graders > VISIBLE * whole && <p class="small">Graders also worked {seconds(graders)} during other phases. When exactly is not recorded.</p>}
    </Lanes>
  );
}

// As in the chart of all steps, whose phases are in the order of their names.
function colourOf(row: Row, phase: string): number {
  const names = Object.keys(row).filter((each) => each.startsWith(PHASES)).map(labelOf).sort();
  return names.indexOf(phase) % COLOURS;
}

function Staleness({ row }: { row: Row }) {
  const shares = stalenessOf(row);
  if (!shares.length) return null;
  return (
    <Lanes
      title="Staleness"
      unit={`step ${row.step}, mean ${significant(row.stale as number | undefined)}`}
      explain="Weight versions between a sampled token and the weights that it trains, as shares of all tokens of the step. 0 is on-policy. Most tokens at the largest value: generation runs as far ahead as rl.max_staleness allows."
      lanes={shares.map(({ versions, share }) => ({ label: `${versions} version${versions === "1" ? "" : "s"}`, colour: 0, from: 0, share, text: percent(share) }))}
    />
  );
}

interface Lane {
  label: string;
  colour: number;
  // Shares of the width.
  from: number;
  share: number;
  text: string;
}

interface Props {
  title: string;
  unit: string;
  explain: string;
  lanes: Lane[];
  tools?: ComponentChildren;
  children?: ComponentChildren;
}

function Lanes({ title, unit, explain, lanes, tools, children }: Props) {
  const place = (lane: Lane) => (element: HTMLElement | null) => {
    if (!element) return;
    element.style.marginInlineStart = `${(100 * lane.from).toFixed(2)}%`;
    element.style.width = `${(100 * lane.share).toFixed(2)}%`;
  };
  return (
    <figure class="chart">
      <figcaption class="row">
        <h2>
          {title} <span class="muted">({unit})</span>
        </h2>
        <span class="space" />
        {tools}
      </figcaption>
      <ul class="lanes small" aria-label={`${title} of ${unit}`}>
        {lanes.map((lane) => (
          <li key={lane.label}>
            <span>{lane.label}</span>
            <span class="lane" aria-hidden="true">
              <span class={`s${lane.colour}`} ref={place(lane)} />
            </span>
            <span class="number">{lane.text}</span>
          </li>
        ))}
      </ul>
      {children}
      <p class="muted small">{explain}</p>
    </figure>
  );
}
