// The lineage of registered models as a forest: each model lies below the one that it was trained from.
import type { Model } from "../state/api";

export interface Branch {
  id: string;
  // Null for a base that is not in the registry.
  model: Model | null;
  below: Branch[];
}

export function forest(models: Model[]): Branch[] {
  const known = new Map(models.map((model) => [model.id, model]));
  const branches = new Map<string, Branch>();
  const branch = (id: string): Branch => {
    const found = branches.get(id) ?? { id, model: known.get(id) ?? null, below: [] };
    branches.set(id, found);
    return found;
  };
  const roots = new Set<Branch>();
  for (const model of models) {
    const own = branch(model.id);
    const above = parentOf(model, known);
    if (above === null || leads(model.id, above, known)) roots.add(own);
    else branch(above).below.push(own);
  }
  for (const found of branches.values()) if (!found.model) roots.add(found);
  return [...roots];
}

// The branch's tree with only the model, what it came from, and what came from it.
export function family(roots: Branch[], id: string): Branch | null {
  for (const root of roots) {
    if (root.id === id) return root;
    const below = family(root.below, id);
    if (below) return { ...root, below: [below] };
  }
  return null;
}

// A checkpoint lies below the final model of its job, other models below their base.
function parentOf(model: Model, known: Map<string, Model>): string | null {
  if (model.step !== null && known.has(model.job)) return model.job;
  return model.lineage.parent ?? model.lineage.base ?? model.base;
}

// Whether `above` descends from the model itself, which only damaged data do.
function leads(id: string, above: string, known: Map<string, Model>): boolean {
  const seen = new Set<string>();
  for (let at: string | null = above; at !== null && !seen.has(at); ) {
    if (at === id) return true;
    seen.add(at);
    const model: Model | undefined = known.get(at);
    at = model ? parentOf(model, known) : null;
  }
  return false;
}
