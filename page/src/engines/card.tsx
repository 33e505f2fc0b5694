// One engine: state, figures, load over the last minutes, drain and resume.
import { useSignal } from "@preact/signals";
import { confirmed } from "../parts/confirm";
import { age, count, percent, short } from "../parts/format";
import { Sparkline } from "../parts/sparkline";
import { Problem } from "../parts/states";
import { call, type EngineState } from "../state/api";
import { samplesOf } from "../state/history";
import { admin, engines, now, stale } from "../state/live";
import { link } from "../state/route";

const TONES: Record<string, string> = { ready: "good", starting: "", draining: "warn", unreachable: "bad" };
const requests = (value: number) => count(value, "request");

export function Card({ engine }: { engine: EngineState }) {
  const problem = useSignal("");
  const act = async (method: string, action: string) => {
    problem.value = "";
    try {
      await call(method, `/v1/engines/${encodeURIComponent(engine.id)}${action}`);
    } catch (error) {
      problem.value = (error as Error).message;
    }
  };
  const drain = async () => {
    const text = `It finishes its ${requests(engine.requests)} and receives no more. ${consequence(engine)}`;
    if (await confirmed(`Drain ${engine.id}?`, text, "Drain")) await act("POST", "/drain");
  };
  const remove = async () => {
    const text = `The gateway forgets the engine, which keeps running. ${consequence(engine)}`;
    if (await confirmed(`Remove ${engine.id}?`, text, "Remove")) await act("DELETE", "");
  };
  return (
    <article class="card engine" aria-label={`Engine ${engine.id}`}>
      <div class="row">
        <h2>{engine.id}</h2>
        <span class="space" />
        <span class={`chip ${TONES[engine.state] ?? ""}`}>{engine.state}</span>
      </div>
      <p class="models">
        {engine.models.map((model) => (
          <a key={model} href={link("playground", { model })}>
            {model}
          </a>
        ))}
        {engine.models.length === 0 && <span class="muted">No model yet</span>}
      </p>
      <Load engine={engine} />
      <Details engine={engine} />
      {engine.error && <p class="error small">{engine.error}</p>}
      <Problem text={problem.value} />
      {admin.value && (
        <div class="row">
          {engine.state === "draining" ? (
            <button type="button" disabled={stale.value} onClick={() => void act("POST", "/resume")}>
              Resume
            </button>
          ) : (
            <button type="button" disabled={stale.value || engine.state !== "ready"} onClick={drain}>
              Drain
            </button>
          )}
          <button type="button" disabled={stale.value} onClick={remove}>
            Remove
          </button>
        </div>
      )}
    </article>
  );
}

function Load({ engine }: { engine: EngineState }) {
  const samples = samplesOf(engine.id);
  const times = samples.map((each) => each.time);
  const lines = [
    { name: "running", values: samples.map((each) => each.running) },
    { name: "waiting", values: samples.map((each) => each.waiting) },
  ];
  const rate = [{ name: "output", values: samples.map((each) => each.rate) }];
  const kv = [{ name: "KV cache", values: samples.map((each) => each.kv) }];
  return (
    <div class={engine.state === "unreachable" ? "load stale" : "load"}>
      <figure>
        <figcaption>
          <span class="key s0">{requests(engine.running)} running</span>
          <span class="key s1">{engine.waiting} waiting</span>
        </figcaption>
        <Sparkline label="Requests" times={times} lines={lines} top={4} show={requests} />
      </figure>
      {engine.tokens_per_second !== null && (
        <figure>
          <figcaption>
            <span class="key s0">{short(engine.tokens_per_second)} tokens/s</span>
          </figcaption>
          <Sparkline label="Output" times={times} lines={rate} top={1} show={(value) => `${short(value)} tokens/s`} />
        </figure>
      )}
      {engine.kv_usage !== null && (
        <figure>
          <figcaption>
            <span class="key s0">KV cache {percent(engine.kv_usage)}</span>
          </figcaption>
          <Sparkline label="KV cache in use" times={times} lines={kv} top={1} show={percent} />
        </figure>
      )}
    </div>
  );
}

function Details({ engine }: { engine: EngineState }) {
  const rows: [string, string | null][] = [
    ["Prefix-cache hits", engine.prefix_hit_rate === null ? null : percent(engine.prefix_hit_rate)],
    ["Weight version", engine.weight_version],
    ["Restarts", String(engine.restarts)],
    ["Unanswered", requests(engine.requests)],
    ["Queued work", engine.pending_work ? count(engine.pending_work, "token") : null],
    ["Failed in a row", engine.failures ? requests(engine.failures) : null],
    ["Latest check", engine.seen === null ? "none" : `${age(now.value - engine.seen * 1000)} ago`],
  ];
  return (
    <dl class="figures">
      {rows.map(
        ([name, value]) =>
          value !== null && (
            <div key={name}>
              <dt>{name}</dt>
              <dd>{value}</dd>
            </div>
          ),
      )}
    </dl>
  );
}

function consequence(engine: EngineState): string {
  const others = (engines.value ?? []).filter((each) => each.state === "ready" && each.id !== engine.id);
  const lost = engine.models.filter((model) => !others.some((each) => each.models.includes(model)));
  if (!lost.length) return "Other engines serve its models.";
  return `No other engine is ready for ${lost.join(", ")}: requests for ${lost.length === 1 ? "it" : "them"} will be refused.`;
}
