// The queue: waiting and running requests, dead letters, batches.
import { Tabs } from "../parts/tabs";
import { params, setParams } from "../state/route";
import { Batches } from "./batches";
import { DeadLetters } from "./dead";
import { Overview } from "./overview";
import "./style.css";

const TABS = { Overview, "Dead letters": DeadLetters, Batches } as const;
type Tab = keyof typeof TABS;

export default function Queue() {
  const named = params.value.get("tab") ?? "";
  const tab = (named in TABS ? named : "Overview") as Tab;
  const Show = TABS[tab];
  return (
    <>
      <div class="row title">
        <h1>Queue</h1>
        <Tabs label="Part of the view" names={Object.keys(TABS)} chosen={tab} choose={(name) => setParams({ tab: name === "Overview" ? "" : name })} />
      </div>
      <Show />
    </>
  );
}
