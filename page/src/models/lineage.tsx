// Lineage as a small tree: a nested list with lines.
import { link, params } from "../state/route";
import { Stage, titleOf } from "./model";
import type { Branch } from "./tree";

export function Lineage({ roots, label }: { roots: Branch[]; label: string }) {
  return (
    <ul class="tree" aria-label={label}>
      {roots.map((branch) => (
        <Node key={branch.id} branch={branch} />
      ))}
    </ul>
  );
}

function Node({ branch: { id, model, below } }: { branch: Branch }) {
  const here = params.value.get("model") === id;
  return (
    <li>
      <span class={here ? "node here" : "node"} aria-current={here ? "true" : undefined}>
        {model ? (
          <>
            <a href={link("models", { model: id })}>{titleOf(model)}</a> <span class="muted small">{model.step === null ? (model.lineage.job_kind ?? model.kind) : `step ${model.step}`}</span> <Stage model={model} />
          </>
        ) : (
          <>
            <a href={link("playground", { model: id })}>{id}</a> <span class="muted small">base</span>
          </>
        )}
      </span>
      {below.length > 0 && (
        <ul>
          {below.map((each) => (
            <Node key={each.id} branch={each} />
          ))}
        </ul>
      )}
    </li>
  );
}
