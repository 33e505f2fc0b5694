// Engines: one card per engine, with load over the last minutes, drain and resume.
import { signal } from "@preact/signals";
import { call, type EngineState } from "./api";
import { engines, failure, history, stale } from "./live";

const problem = signal("");

export function Engines() {
  if (engines.value === null) {
    return failure.value ? (
      <div class="card narrow" role="alert">
        <h1>No connection</h1>
        <p>{failure.value}</p>
      </div>
    ) : (
      <div class="cards" aria-busy="true" aria-label="Loading">
        <div class="skeleton tall" />
        <div class="skeleton tall" />
      </div>
    );
  }
  if (engines.value.length === 0) {
    return (
      <div class="card narrow">
        <h1>No engines</h1>
        <p>
          An engine computes a model's answers. Start one with <code>rondo up MODEL</code>, or register a running
          OpenAI-compatible server:
        </p>
        <pre>{`curl ${location.origin}/v1/engines -H 'Content-Type: application/json' -d '{"url": "http://127.0.0.1:8001"}'`}</pre>
      </div>
    );
  }
  return (
    <>
      <h1>Engines</h1>
      {problem.value && (
        <p class="error" role="alert">
          {problem.value}
        </p>
      )}
      <div class={stale.value ? "cards stale" : "cards"}>
        {engines.value.map((engine) => (
          <Card key={engine.id} engine={engine} />
        ))}
      </div>
    </>
  );
}

function Card({ engine }: { engine: EngineState }) {
  const past = history.get(engine.id);
  const good = engine.state === "ready";
  return (
    <article class="card">
      <h2>
        {engine.id} <span class={`state ${engine.state}`}>{engine.state}</span>
      </h2>
      <p class="models">{engine.models.join(", ") || "no model yet"}</p>
      <dl>
        <Figure name="running" value={count(engine.running)} />
        <Figure name="waiting" value={count(engine.waiting)} />
        {engine.kv_usage !== null && <Figure name="KV cache" value={`${(engine.kv_usage * 100).toFixed(0)} %`} />}
        {engine.weight_version !== null && <Figure name="weights" value={`version ${engine.weight_version}`} />}
        <Figure name="restarts" value={String(engine.restarts)} />
      </dl>
      {past && <Sparkline values={past.running.map((each, place) => each + (past.waiting[place] ?? 0))} />}
      {engine.error && <p class="error small">{engine.error}</p>}
      {engine.state === "draining" ? (
        <button type="button" onClick={() => void act(engine, "resume")}>
          Resume
        </button>
      ) : (
        <button type="button" disabled={!good} onClick={() => drain(engine)}>
          Drain
        </button>
      )}
    </article>
  );
}

function count(requests: number): string {
  return `${requests} request${requests === 1 ? "" : "s"}`;
}

function Figure({ name, value }: { name: string; value: string }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{value}</dd>
    </div>
  );
}

function Sparkline({ values }: { values: number[] }) {
  const most = Math.max(1, ...values);
  const points = values.map((value, place) => `${place},${30 - (value / most) * 28}`).join(" ");
  return (
    <figure>
      <svg viewBox="0 0 120 32" preserveAspectRatio="none" role="img" aria-label={`Requests, at most ${most}`}>
        <polyline points={points} />
      </svg>
      <figcaption class="muted small">requests in the engine, at most {most}; a rising line means it is overloaded</figcaption>
    </figure>
  );
}

function drain(engine: EngineState): void {
  const others = (engines.value ?? []).filter((each) => each.state === "ready" && each.id !== engine.id).length;
  const consequence = others ? "Other engines take its requests." : "No other engine is ready: requests will be refused.";
  if (confirm(`Send no further requests to ${engine.id}? ${consequence}`)) void act(engine, "drain");
}

async function act(engine: EngineState, action: string): Promise<void> {
  problem.value = "";
  try {
    await call("POST", `/v1/engines/${encodeURIComponent(engine.id)}/${action}`);
  } catch (error) {
    problem.value = (error as Error).message;
  }
}
