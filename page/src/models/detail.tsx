// One model: names, lineage, metrics, other versions, checkpoints.
import { useSignal } from "@preact/signals";
import { Copy } from "../parts/copy";
import { age, short, significant } from "../parts/format";
import { Empty, Problem } from "../parts/states";
import { Stat } from "../parts/stat";
import { Table } from "../parts/table";
import { type Alias, call, type Checkpoint, type Model } from "../state/api";
import { now, stale } from "../state/live";
import { useLoaded } from "../state/load";
import { nameOf } from "../state/names";
import { go, link } from "../state/route";
import { Lineage } from "./lineage";
import { Actions, requestName, Score, Stage, State, titleOf } from "./model";
import { family, forest } from "./tree";
import type { Registry } from "./view";

interface Props {
  id: string;
  registry: Registry;
  problem: Parameters<typeof Actions>[0]["problem"];
  changed: () => void;
}

export function Detail({ id, registry: { models, aliases }, problem, changed }: Props) {
  const model = models.find((each) => each.id === id);
  const back = <a href={link("models", { model: "" })}>All models</a>;
  if (!model) {
    return (
      <>
        <h1 class="hidden">Model</h1>
        <Empty icon="search" title="This model is not in the registry">
          <p>It was removed, or your key may not use it. {back}</p>
        </Empty>
      </>
    );
  }
  const tree = family(forest(models), id);
  return (
    <>
      <div class="row title">
        <h1>{titleOf(model)}</h1>
        <Stage model={model} />
        <State model={model} />
        {back}
        <span class="space" />
        <Actions model={model} aliases={aliases} problem={problem} all changed={(removed) => (removed && go("models", { model: "" }), changed())} />
      </div>
      <Problem text={problem.value} />
      <div class="stats">
        <Stat name="Kind" value={model.kind} unit={model.base ? `over ${model.lineage.base ?? model.base}` : ""} />
        <Stat name="Size" value={model.bytes === null ? "–" : short(model.bytes)} unit="bytes" />
        {model.lineage.steps != null && <Stat name="Steps" value={String(model.lineage.steps)} unit={model.lineage.job_kind ?? ""} />}
        <Stat name="Registered" value={age(now.value - model.created * 1000)} unit={`ago, by ${nameOf(model.owner)}`} />
      </div>
      <div class="sections">
        <section class="card">
          <h2>Names</h2>
          <Names model={model} aliases={aliases} problem={problem} changed={changed} />
        </section>
        <section class="card">
          <h2>Lineage</h2>
          {tree && <Lineage roots={[tree]} label="Lineage" />}
          <Origin model={model} />
        </section>
        <Numbers model={model} />
        <Versions model={model} models={models} aliases={aliases} problem={problem} changed={changed} />
        <Checkpoints model={model} />
      </div>
    </>
  );
}

function Names({ model, aliases, problem, changed }: { model: Model; aliases: Alias[] } & Pick<Props, "problem" | "changed">) {
  const text = useSignal("");
  const attempt = async (action: () => Promise<unknown>) => {
    problem.value = "";
    try {
      await action();
      text.value = "";
    } catch (error) {
      problem.value = (error as Error).message;
    }
    changed();
  };
  const path = (alias: string) => `/v1/registry/aliases/${encodeURIComponent(alias)}`;
  const own = aliases.filter((each) => each.model === model.id && !each.promoted).map((each) => each.alias);
  return (
    <>
      <p class="muted small">Requests for any of these names are answered by this model.</p>
      <ul class="names">
        {[...new Set([...model.aliases, model.id])].map((name) => (
          <li key={name} class="row">
            <code class="wide">{name}</code>
            <Copy text={name} label={`Copy ${name}`} quiet />
            {own.includes(name) && (
              <button type="button" class="quiet" disabled={stale.value} aria-label={`Remove the alias ${name}`} onClick={() => void attempt(() => call("DELETE", path(name)))}>
                Remove
              </button>
            )}
          </li>
        ))}
      </ul>
      <form
        class="row"
        onSubmit={(event) => {
          event.preventDefault();
          void attempt(() => call("PUT", path(text.value.trim()), { model: model.id }));
        }}
      >
        <input aria-label="Another name" placeholder="another name" required maxLength={128} value={text.value} onInput={(event) => (text.value = event.currentTarget.value)} />
        <button type="submit" disabled={stale.value}>
          Add alias
        </button>
      </form>
    </>
  );
}

function Origin({ model }: { model: Model }) {
  const { data, config, job_kind } = model.lineage;
  const settings = Object.entries(config ?? {}).filter(([, value]) => value !== null);
  return (
    <dl class="origin">
      {job_kind && (
        <div>
          <dt>Job</dt>
          <dd>
            <a href={link("jobs", { job: model.job, new: "", curves: "" })}>{job_kind}</a>
          </dd>
        </div>
      )}
      {data && (
        <div>
          <dt>Hash of the data</dt>
          <dd>
            <code class="wide">{data}</code>
          </dd>
        </div>
      )}
      {settings.length > 0 && (
        <div>
          <dt class="hidden">Settings</dt>
          <dd>
            <details>
              <summary>Settings of the job</summary>
              <code class="wide">{settings.map(([name, value]) => `${name}=${typeof value === "string" ? value : JSON.stringify(value)}`).join(" ")}</code>
            </details>
          </dd>
        </div>
      )}
      <div>
        <dt>Files</dt>
        <dd>
          <code class="wide">{model.source}</code>
        </dd>
      </div>
    </dl>
  );
}

function Numbers({ model }: { model: Model }) {
  const rows = Object.entries(model.lineage.metrics ?? {}).map(([name, value]) => ({ name, value }));
  if (!rows.length) return null;
  return (
    <section class="card">
      <h2>Metrics</h2>
      <dl class="numbers">
        {rows.map(({ name, value }) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{significant(value)}</dd>
          </div>
        ))}
      </dl>
    </section>
  );
}

function Versions({ model, models, aliases, problem, changed }: { model: Model; models: Model[]; aliases: Alias[] } & Pick<Props, "problem" | "changed">) {
  const versions = models.filter((each) => each.name === model.name);
  if (versions.length < 2) return null;
  return (
    <section class="card full">
      <Table
        label={`Versions of ${model.name}`}
        tools={<h2>Versions of {model.name}</h2>}
        rows={versions}
        id={(row) => row.id}
        sort={1}
        down
        columns={[
          { name: "Version", value: (row) => row.id, show: (row) => (row.id === model.id ? <strong>this one</strong> : <a href={link("models", { model: row.id })}>{row.step === null ? `${row.job.slice(0, 12)}` : `step ${row.step}`}</a>) },
          { name: "Registered", value: (row) => row.created, show: (row) => `${age(now.value - row.created * 1000)} ago` },
          { name: "Stage", value: (row) => row.stage, show: (row) => <Stage model={row} /> },
          { name: "Score", value: (row) => Object.values(row.lineage.metrics ?? {})[0] ?? 0, show: (row) => <Score model={row} />, number: true },
          {
            name: "Actions",
            value: () => "",
            actions: true,
            show: (row) => <Actions model={row} aliases={aliases} problem={problem} changed={changed} />,
          },
        ]}
      />
    </section>
  );
}

function Checkpoints({ model }: { model: Model }) {
  const load = async () => (await call<{ data: Checkpoint[] }>("GET", `/v1/jobs/${encodeURIComponent(model.job)}/checkpoints`)).data;
  const loaded = useLoaded(load, [model.job]);
  // Jobs of the command line have no entry among the gateway's jobs.
  if (loaded.problem || !loaded.data?.length) return null;
  return (
    <section class="card full">
      <Table
        label="Checkpoints"
        tools={<h2>Checkpoints of its job</h2>}
        rows={loaded.data}
        id={(row) => row.model}
        down
        columns={[
          { name: "Step", value: (row) => row.step, number: true },
          { name: "Loss", value: (row) => row.metrics.loss ?? 0, show: (row) => significant(row.metrics.loss), number: true },
          { name: "Reward", value: (row) => row.metrics.reward ?? 0, show: (row) => significant(row.metrics.reward), number: true },
          { name: "Answers as", value: (row) => row.model, show: (row) => <code class="wide">{row.model.replace(/^([0-9a-f]{12})[0-9a-f]*/, "$1…")}</code> },
          {
            name: "Actions",
            value: () => "",
            actions: true,
            show: (row) => (
              <span class="row actions">
                <a class="button" href={link("playground", { model: row.model })} aria-label={`Try step ${row.step}`}>
                  Try
                </a>
                <a class="button" href={link("playground", { model: [row.model, requestName(model)] })} aria-label={`Compare step ${row.step}`}>
                  Compare
                </a>
              </span>
            ),
          },
        ]}
      />
    </section>
  );
}
