// What the view knows about registered models: words, tones, and the actions that change them.
import type { Signal } from "@preact/signals";
import { announce } from "../parts/announce";
import { confirmed } from "../parts/confirm";
import { significant } from "../parts/format";
import { type Alias, call, type Model } from "../state/api";
import { models as served, stale } from "../state/live";
import { link } from "../state/route";

const HASH_SHOWN = 12;
const STATES: Record<string, string> = { ready: "good", failed: "bad", loading: "warn" };
const STAGES: Record<string, string> = { production: "good" };

export function shortened(id: string): string {
  return id.replace(/^([0-9a-f]{64})/, (hash) => hash.slice(0, HASH_SHOWN));
}

export function titleOf(model: Model): string {
  return model.name === model.job ? shortened(model.id) : model.step === null ? model.name : `${model.name}@${model.step}`;
}

// The name for requests that always means this version.
export function requestName(model: Model): string {
  return (served.value ?? []).includes(model.name) && model.aliases.includes(model.name) ? model.name : model.id;
}

export function Stage({ model }: { model: Model }) {
  return <span class={`chip ${STAGES[model.stage] ?? ""}`}>{model.stage}</span>;
}

export function State({ model }: { model: Model }) {
  return (
    <>
      <span class={`chip ${STATES[model.state] ?? ""}`}>{model.state}</span>
      {model.error && <p class="error small reason">{model.error}</p>}
    </>
  );
}

// The figure by which versions are compared.
export function score(model: Model): { name: string; value: number } | null {
  const { metrics } = model.lineage;
  const names = ["held_out/reward", "reward", "evaluate/loss", "held_out/loss", "loss"];
  const name = names.find((each) => metrics?.[each] !== undefined);
  return name ? { name, value: metrics![name]! } : null;
}

export function Score({ model }: { model: Model }) {
  const found = score(model);
  return found ? (
    <>
      {significant(found.value)} <span class="muted small">{found.name}</span>
    </>
  ) : (
    <span class="muted">–</span>
  );
}

interface Props {
  model: Model;
  aliases: Alias[];
  problem: Signal<string>;
  changed: (removed?: boolean) => void;
  // All actions, or only the usual ones.
  all?: boolean;
}

interface Action {
  label: string;
  method: string;
  path: string;
  title?: string;
  text?: string;
  done?: boolean;
}

export function Actions({ model, aliases, problem, changed, all }: Props) {
  const act = async ({ label, method, path, title, text, done }: Action) => {
    if (text && !(await confirmed(title ?? `${label} ${titleOf(model)}?`, text, label))) return;
    problem.value = "";
    try {
      await call(method, path);
      announce(`${label}: ${titleOf(model)}`);
      changed(done);
    } catch (error) {
      problem.value = (error as Error).message;
      changed();
    }
  };
  return (
    <span class="row wrap actions">
      {model.kind !== "reward" && (
        <a class="button" href={link("playground", { model: requestName(model) })} aria-label={`Try ${titleOf(model)}`}>
          Try
        </a>
      )}
      {actions(model, aliases, all).map((action) => (
        <button key={action.label} type="button" disabled={stale.value} aria-label={`${action.label} ${titleOf(model)}`} onClick={() => void act(action)}>
          {action.label}
        </button>
      ))}
    </span>
  );
}

function actions(model: Model, aliases: Alias[], all = false): Action[] {
  const path = `/v1/registry/${encodeURIComponent(model.id)}`;
  const found: Action[] = [];
  const current = aliases.find((each) => each.alias === model.name && each.promoted);
  if (model.kind !== "reward" && current?.model !== model.id) {
    const before = current ? `, in place of ${shortened(current.model)}` : "";
    found.push({ label: "Promote", method: "POST", path: `${path}/promote`, text: `Requests for ${model.name} are answered by this version from now on${before}. It can be rolled back.` });
  }
  if (current?.model === model.id && current.previous.length) {
    const target = shortened(current.previous[0]!);
    found.push({
      label: "Roll back",
      method: "POST",
      path: `/v1/registry/${encodeURIComponent(model.name)}/rollback`,
      title: `Roll back ${model.name}?`,
      text: `Requests for ${model.name} are answered by ${target} again, which it stood for before.`,
    });
  }
  if (!all) return found;
  if (model.state === "unloaded" || model.state === "failed") found.push({ label: "Load", method: "POST", path: `${path}/load` });
  if (model.state === "ready") found.push({ label: "Unload", method: "POST", path: `${path}/unload`, text: "Running requests finish. The next request for it loads it again, and waits for that." });
  found.push({ label: "Remove", method: "DELETE", path, text: "It is unloaded, and its names stand for nothing. Its files stay.", done: true });
  return found;
}
