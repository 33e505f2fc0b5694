// Training jobs: the list, one job, several compared, and the form that submits one.
import { Icon } from "../parts/icon";
import { stale } from "../state/live";
import { go, link, params } from "../state/route";
import { Compare } from "./compare";
import { Detail } from "./detail";
import { Form } from "./form";
import { List } from "./list";
import "./style.css";

export default function Jobs() {
  const job = params.value.get("job");
  const compared = params.value.getAll("compare");
  const comparing = params.value.has("curves") && compared.length > 0;
  if (params.value.has("new")) return <Form />;
  if (job) return <Detail key={job} id={job} />;
  return (
    <>
      <div class="row title">
        <h1>{comparing ? "Comparison" : "Jobs"}</h1>
        {comparing && <a href={link("jobs", { curves: "" })}>All jobs</a>}
        <span class="space" />
        {!comparing && compared.length > 0 && (
          <button type="button" onClick={() => go("jobs", { curves: "1" })}>
            <Icon name="chart" /> Compare {compared.length}
          </button>
        )}
        {!comparing && (
          <button type="button" class="main" disabled={stale.value} onClick={() => go("jobs", { new: "1" })}>
            <Icon name="plus" /> New job
          </button>
        )}
      </div>
      {comparing ? <Compare ids={compared} /> : <List />}
    </>
  );
}
