// Evals: the list, one eval with its runs, one run with its graded items, runs side by side, and the form.
import { useSignal } from "@preact/signals";
import { confirmed } from "../parts/confirm";
import { age } from "../parts/format";
import { Icon } from "../parts/icon";
import { Content } from "../parts/loaded";
import { Empty, Problem } from "../parts/states";
import { type ColumnOf, Table } from "../parts/table";
import { call } from "../state/api";
import { now, stale } from "../state/live";
import { useLoaded } from "../state/load";
import { go, link, params } from "../state/route";
import { Compared, Items } from "./items";
import { all, type Eval } from "./eval";
import { Form } from "./form";
import { Runs } from "./runs";
import "./style.css";

const MOST = 500;

export default function Evals() {
  const id = params.value.get("eval");
  const run = params.value.get("run");
  const compared = params.value.getAll("compare");
  if (params.value.has("new")) return <Form />;
  if (id && run) return <Items key={run} id={id} run={run} />;
  if (id && params.value.has("table") && compared.length > 1) return <Compared id={id} runs={compared} />;
  if (id) return <Runs key={id} id={id} />;
  return (
    <>
      <div class="row title">
        <h1>Evals</h1>
        <span class="space" />
        <a class="button main" href={link("evals", { new: "1" })}>
          <Icon name="plus" /> New eval
        </a>
      </div>
      <List />
    </>
  );
}

function List() {
  const problem = useSignal("");
  const loaded = useLoaded(() => all<Eval>("/v1/evals?order=desc", MOST));
  const remove = async (each: Eval) => {
    if (!(await confirmed(`Delete ${each.name ?? each.id}?`, "The eval is deleted with its runs and their graded items.", "Delete the eval"))) return;
    problem.value = "";
    try {
      await call("DELETE", `/v1/evals/${each.id}`);
    } catch (error) {
      problem.value = (error as Error).message;
    }
    await loaded.reload();
  };
  return (
    <Content of={loaded} name="evals">
      {({ data }) =>
        data.length === 0 ? (
          <Empty icon="check" title="No evals">
            <p>An eval asks a model the same questions each time and grades its answers, so that models and checkpoints can be compared.</p>
            <p>
              <a class="button main" href={link("evals", { new: "1" })}>
                <Icon name="plus" /> New eval
              </a>
            </p>
            <p>Programs for OpenAI's Evals API work unchanged.</p>
          </Empty>
        ) : (
          <>
            <Problem text={problem.value} />
            <Table label="Evals" columns={columns((each) => void remove(each))} rows={data} id={(row) => row.id} sort={2} down />
          </>
        )
      }
    </Content>
  );
}

function columns(remove: (each: Eval) => void): ColumnOf<Eval>[] {
  return [
    {
      name: "Name",
      value: (row) => row.name ?? row.id,
      show: (row) => (
        <a class="wide" href={link("evals", { eval: row.id, compare: [] })}>
          {row.name ?? row.id}
        </a>
      ),
    },
    { name: "Criteria", value: (row) => row.testing_criteria.map((each) => each.name ?? each.type ?? "").join(", ") },
    { name: "Created", value: (row) => row.created_at, show: (row) => `${age(now.value - row.created_at * 1000)} ago` },
    {
      name: "Actions",
      value: () => "",
      actions: true,
      show: (row) => (
        <span class="row actions">
          <button type="button" onClick={() => go("evals", { eval: row.id, compare: [] })} aria-label={`Runs of ${row.name ?? row.id}`}>
            Runs
          </button>
          <button type="button" disabled={stale.value} onClick={() => remove(row)} aria-label={`Delete ${row.name ?? row.id}`}>
            Delete
          </button>
        </span>
      ),
    },
  ];
}
