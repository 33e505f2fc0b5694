// Runs of one eval with their scores; another model is graded on the items of an earlier run.
import { useSignal } from "@preact/signals";
import { announce } from "../parts/announce";
import { confirmed } from "../parts/confirm";
import { age, percent } from "../parts/format";
import { Icon } from "../parts/icon";
import { Content } from "../parts/loaded";
import { Progress } from "../parts/progress";
import { Empty, Problem } from "../parts/states";
import { type ColumnOf, Table } from "../parts/table";
import { call } from "../state/api";
import { models, now, stale } from "../state/live";
import { useAttempt } from "../state/attempt";
import { useLoaded } from "../state/load";
import { go, link, params, setParams } from "../state/route";
import { all, type Eval, type Run, running, score, titleOf, TONES } from "./eval";

const POLL_MS = 2000;
const MOST_RUNS = 500;
const MOST_COMPARED = 4;

export function Runs({ id }: { id: string }) {
  const live = useSignal(true);
  const path = `/v1/evals/${encodeURIComponent(id)}`;
  const load = async () => {
    const [own, runs] = await Promise.all([call<Eval>("GET", path), all<Run>(`${path}/runs?order=desc`, MOST_RUNS)]);
    live.value = runs.data.some(running);
    return { own, runs: runs.data };
  };
  const loaded = useLoaded(load, [id, live.value], live.value ? POLL_MS : 0);
  const { problem, attempt } = useAttempt(loaded.reload);
  const again = (run: Run, model: string) =>
    attempt(async () => {
      await call("POST", `${path}/runs`, { data_source: { ...run.data_source, model } });
      announce(`A run with ${model} was started.`);
      live.value = true;
    });
  const remove = async (run: Run) => {
    if (await confirmed(`Delete ${titleOf(run)}?`, "The run is deleted with its graded items.", "Delete the run")) await attempt(() => call("DELETE", `${path}/runs/${run.id}`));
  };
  const compared = params.value.getAll("compare");
  return (
    <>
      <div class="row title">
        <h1>{loaded.data?.own.name ?? "Eval"}</h1>
        <a href={link("evals", { eval: "", compare: [] })}>All evals</a>
        <span class="space" />
        {compared.length > 1 && (
          <button type="button" onClick={() => go("evals", { table: "1" })}>
            <Icon name="chart" /> Compare {compared.length}
          </button>
        )}
      </div>
      <Problem text={problem.value} />
      <Content of={loaded} name="the eval">
        {({ runs }) =>
          runs.length === 0 ? (
            <Empty icon="check" title="No runs">
              <p>A run samples a model on each item, and grades the answers:</p>
              <pre tabIndex={0}>{`client.evals.runs.create(\n    "${id}",\n    data_source=...,\n)`}</pre>
            </Empty>
          ) : (
            <>
              <Again runs={runs} start={(run, model) => void again(run, model)} />
              <Table
                label="Runs"
                columns={columns((run) => void attempt(() => call("POST", `${path}/runs/${run.id}/cancel`)), (run) => void remove(run))}
                rows={runs}
                id={(row) => row.id}
                sort={5}
                down
              />
            </>
          )
        }
      </Content>
    </>
  );
}

function Again({ runs, start }: { runs: Run[]; start: (run: Run, model: string) => void }) {
  const model = useSignal("");
  const source = runs.find((run) => run.data_source["model"]);
  if (!source || !models.value?.length) return null;
  const chosen = model.value || models.value[0]!;
  return (
    <form class="row wrap toolbar" onSubmit={(event) => (event.preventDefault(), start(source, chosen))}>
      <label class="check">
        Grade another model on the same items:
        <select aria-label="Model of another run" value={chosen} onChange={(event) => (model.value = event.currentTarget.value)}>
          {models.value.map((each) => (
            <option key={each}>{each}</option>
          ))}
        </select>
      </label>
      <button type="submit" disabled={stale.value}>
        Start the run
      </button>
    </form>
  );
}

function columns(cancel: (run: Run) => void, remove: (run: Run) => void): ColumnOf<Run>[] {
  return [
    { name: "Compare", value: () => "", actions: true, show: (run) => <Chosen run={run} /> },
    {
      name: "Run",
      value: titleOf,
      show: (run) => (
        <a class="wide" href={link("evals", { run: run.id })}>
          {titleOf(run)}
        </a>
      ),
    },
    {
      name: "Status",
      value: (run) => run.status,
      show: (run) => (
        <>
          <span class={`chip ${TONES[run.status] ?? ""}`}>{run.status.replace("_", " ")}</span>
          {run.error?.message && <p class="error small reason">{run.error.message}</p>}
        </>
      ),
    },
    { name: "Passed", value: (run) => score(run) ?? -1, show: (run) => <strong>{score(run) === null ? "–" : percent(score(run)!)}</strong>, number: true },
    {
      name: "Progress",
      value: (run) => run.result_counts.passed,
      show: ({ id, result_counts: { passed, failed, errored, total } }) => <Progress label={`Progress of ${id}`} done={passed} failed={failed + errored} total={total} />,
    },
    { name: "Created", value: (run) => run.created_at, show: (run) => `${age(now.value - run.created_at * 1000)} ago` },
    {
      name: "Actions",
      value: () => "",
      actions: true,
      show: (run) =>
        running(run) ? (
          <button type="button" disabled={stale.value} aria-label={`Cancel ${titleOf(run)}`} onClick={() => cancel(run)}>
            Cancel
          </button>
        ) : (
          <button type="button" disabled={stale.value} aria-label={`Delete ${titleOf(run)}`} onClick={() => remove(run)}>
            Delete
          </button>
        ),
    },
  ];
}

function Chosen({ run }: { run: Run }) {
  const chosen = params.value.getAll("compare");
  const has = chosen.includes(run.id);
  const toggle = () => setParams({ compare: has ? chosen.filter((each) => each !== run.id) : [...chosen, run.id] });
  return <input type="checkbox" aria-label={`Compare ${titleOf(run)}`} checked={has} disabled={!has && chosen.length >= MOST_COMPARED} onChange={toggle} />;
}
