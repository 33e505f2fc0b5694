// The registry: models with their versions, lineage, adapters and checkpoints.
import { useSignal } from "@preact/signals";
import { age, short } from "../parts/format";
import { Content } from "../parts/loaded";
import { Empty, Problem } from "../parts/states";
import { type ColumnOf, Table } from "../parts/table";
import { Tabs } from "../parts/tabs";
import { type Alias, call, type Model } from "../state/api";
import { now } from "../state/live";
import { useLoaded } from "../state/load";
import { loadNames, nameOf } from "../state/names";
import { link, params, setParams } from "../state/route";
import { Detail } from "./detail";
import { Lineage } from "./lineage";
import { Actions, Score, score, Stage, State, titleOf } from "./model";
import { forest } from "./tree";
import "./style.css";

const POLL_MS = 3000;
const MOST = 1000;
const KINDS = ["lora", "tokenformer", "full", "reward"];

export interface Registry {
  models: Model[];
  aliases: Alias[];
}

async function load(): Promise<Registry> {
  const [models, aliases] = await Promise.all([call<{ data: Model[] }>("GET", `/v1/registry?limit=${MOST}`), call<{ data: Alias[] }>("GET", "/v1/registry/aliases")]);
  return { models: models.data, aliases: aliases.data };
}

export default function Models() {
  const problem = useSignal("");
  useLoaded(loadNames);
  const loaded = useLoaded(load, [], POLL_MS);
  const id = params.value.get("model");
  const tab = params.value.get("tab") === "lineage" ? "Lineage" : "Models";
  const how = { problem, changed: () => void loaded.reload() };
  return (
    <>
      {!id && (
        <div class="row title">
          <h1>Models</h1>
          <Tabs label="Part of the view" names={["Models", "Lineage"]} chosen={tab} choose={(name) => setParams({ tab: name === "Lineage" ? "lineage" : "" })} />
        </div>
      )}
      {!id && <Problem text={problem.value} />}
      <Content of={loaded} name="models">
        {(registry) => {
          if (id) return <Detail key={id} id={id} registry={registry} {...how} />;
          if (!registry.models.length) return <NoModels />;
          return tab === "Lineage" ? <Lineage roots={forest(registry.models)} label="Lineage of all models" /> : <List registry={registry} {...how} />;
        }}
      </Content>
    </>
  );
}

type How = Pick<Parameters<typeof Actions>[0], "problem" | "changed">;

function List({ registry: { models, aliases }, ...how }: { registry: Registry } & How) {
  const text = params.value.get("text") ?? "";
  const kind = params.value.get("kind") ?? "";
  const words = text.toLowerCase().split(/\s+/);
  const shown = models.filter((model) => {
    const whole = [model.id, model.name, ...model.aliases, model.base, model.stage].join(" ").toLowerCase();
    return (!kind || model.kind === kind) && words.every((word) => whole.includes(word));
  });
  const tools = (
    <>
      <input type="search" aria-label="Filter by name, base or stage" placeholder="Name, base or stage" value={text} onInput={(event) => setParams({ text: event.currentTarget.value })} />
      <select aria-label="Kind" value={kind} onChange={(event) => setParams({ kind: event.currentTarget.value })}>
        <option value="">all kinds</option>
        {KINDS.map((each) => (
          <option key={each}>{each}</option>
        ))}
      </select>
    </>
  );
  return (
    <>
      <Table label="Models" columns={columns(aliases, how)} rows={shown} id={(model) => model.id} sort={7} down tools={tools} />
      {!shown.length && <p class="muted">No model matches the filters.</p>}
    </>
  );
}

function columns(aliases: Alias[], how: How): ColumnOf<Model>[] {
  return [
    {
      name: "Name",
      value: titleOf,
      show: (model) => (
        <>
          <a class="wide" href={link("models", { model: model.id })}>
            {titleOf(model)}
          </a>
          <span class="muted small"> {model.aliases.filter((each) => each !== model.name).join(", ")}</span>
        </>
      ),
    },
    { name: "Kind", value: (model) => model.kind },
    { name: "Base", value: (model) => model.lineage.base ?? model.base ?? "" },
    { name: "Stage", value: (model) => model.stage, show: (model) => <Stage model={model} /> },
    { name: "State", value: (model) => model.state, show: (model) => <State model={model} /> },
    { name: "Score", value: (model) => score(model)?.value ?? 0, show: (model) => <Score model={model} />, number: true },
    { name: "Size", value: (model) => model.bytes ?? 0, show: (model) => (model.bytes === null ? "–" : `${short(model.bytes)}B`), number: true },
    { name: "Registered", value: (model) => model.created, show: (model) => `${age(now.value - model.created * 1000)} ago` },
    { name: "Owner", value: (model) => nameOf(model.owner) },
    { name: "Actions", value: () => "", actions: true, show: (model) => <Actions model={model} aliases={aliases} {...how} /> },
  ];
}

function NoModels() {
  return (
    <Empty icon="model" title="No registered models">
      <p>
        The model of each job that has succeeded appears here, and answers by its name or hash. <a href={link("jobs", { new: "sft" })}>Train one</a>, or register an existing folder:
      </p>
      <pre tabIndex={0}>rondo registry import FOLDER</pre>
    </Empty>
  );
}
