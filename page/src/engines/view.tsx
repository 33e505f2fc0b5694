// Engines and their load, and the logs of all parts.
import { useSignal } from "@preact/signals";
import { count } from "../parts/format";
import { Icon } from "../parts/icon";
import { Empty, NoConnection, Skeleton } from "../parts/states";
import { Stat } from "../parts/stat";
import { Tabs } from "../parts/tabs";
import { admin, connected, engines, failure, queue, stale } from "../state/live";
import { params, setParams } from "../state/route";
import { Card } from "./card";
import { Logs } from "./logs";
import { Register } from "./register";
import "./style.css";

export default function Engines() {
  const tab = params.value.get("tab") === "logs" ? "Logs" : "Engines";
  const registering = useSignal(false);
  return (
    <>
      <div class="row title">
        <h1>Engines</h1>
        <Tabs label="Part of the view" names={["Engines", "Logs"]} chosen={tab} choose={(name) => setParams({ tab: name === "Logs" ? "logs" : "" })} />
        <span class="space" />
        {admin.value && (
          <button type="button" onClick={() => (registering.value = true)}>
            <Icon name="plus" /> Register
          </button>
        )}
      </div>
      {tab === "Logs" ? <Logs /> : <Cards />}
      {registering.value && <Register close={() => (registering.value = false)} />}
    </>
  );
}

function Cards() {
  const found = engines.value;
  if (found === null) return failure.value && !connected.value ? <NoConnection /> : <Skeleton heights={["bar", "tall", "tall"]} />;
  if (found.length === 0) return <NoEngines />;
  const sum = (name: "running" | "waiting") => found.reduce((total, each) => total + (each.state === "unreachable" ? 0 : each[name]), 0);
  const ready = found.filter((each) => each.state === "ready").length;
  const queued = Object.values(queue.value?.waiting ?? {}).reduce((total, each) => total + each, 0);
  return (
    <div class={stale.value ? "stale" : ""}>
      <div class="stats">
        <Stat name="Ready" value={`${ready} of ${found.length}`} unit="engines" tone={ready < found.length ? "warn" : ""} />
        <Stat name="Running" value={String(sum("running"))} unit="requests" />
        <Stat name="Waiting" value={String(sum("waiting"))} unit="requests" />
        <Stat name="Queued" value={String(queued)} unit="in the gateway" tone={queued ? "warn" : ""} />
        <Stat name="Models" value={String(new Set(found.flatMap((each) => each.models)).size)} unit="served" />
      </div>
      <div class="cards">
        {found.map((engine) => (
          <Card key={engine.id} engine={engine} />
        ))}
      </div>
      <p class="muted small">
        Load of {count(10, "minute")} at most. Requests that wait for longer than a few seconds mean that an engine is
        overloaded; KV use near 100 % makes it preempt requests.
      </p>
    </div>
  );
}

function NoEngines() {
  return (
    <Empty icon="server" title="No engines">
      <p>An engine computes the responses of a model. Start one:</p>
      <pre>rondo up MODEL</pre>
      <p>Any running server with OpenAI's API can be registered as well.</p>
    </Empty>
  );
}
