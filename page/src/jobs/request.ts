// The request that the form submits, and the same as a shell command.
import type { NewJob, Setting } from "../state/api";

export interface Draft {
  kind: NewJob["kind"];
  model: string;
  data: string;
  validation: string;
  task: string;
  name: string;
  ranks: string;
  gpus: string;
  // Texts by name of the setting; an empty one means the default.
  settings: Record<string, string>;
}

export class FieldError extends Error {
  constructor(
    readonly field: string,
    message: string,
  ) {
    super(message);
  }
}

export function bodyOf(draft: Draft, known: Setting[]): NewJob {
  const settings: Record<string, unknown> = {};
  for (const setting of known) {
    const text = draft.settings[setting.name]?.trim();
    if (text) settings[setting.name] = valueOf(setting, text);
  }
  const rl = draft.kind === "rl";
  return {
    kind: draft.kind,
    model: draft.model.trim(),
    ...(rl ? { task: draft.task } : { data: draft.data.trim() }),
    ...(!rl && draft.validation ? { validation_data: draft.validation } : {}),
    ...(draft.name.trim() ? { name: draft.name.trim() } : {}),
    settings,
    resources: resources(draft) as NewJob["resources"],
  };
}

// The others have their defaults.
function resources(draft: Draft): Partial<NewJob["resources"]> {
  return { ...(draft.ranks.trim() ? { ranks: Number(draft.ranks) } : {}), ...(draft.gpus.trim() ? { gpus: Number(draft.gpus) } : {}) };
}

function valueOf(setting: Setting, text: string): unknown {
  const field = `settings.${setting.name}`;
  if (setting.type === "integer" || setting.type === "number") {
    const value = Number(text);
    if (!Number.isFinite(value) || (setting.type === "integer" && !Number.isInteger(value))) throw new FieldError(field, `${setting.name} is no ${setting.type === "integer" ? "whole number" : "number"}: ${text}`);
    return value;
  }
  if (setting.type === "boolean") return text === "true";
  if (setting.type !== "json") return text;
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new FieldError(field, `${setting.name} is no JSON: ${(error as Error).message}`);
  }
}

export function curl(body: NewJob, origin: string): string {
  const json = JSON.stringify(body, null, 2).replaceAll("'", "'\\''");
  return `curl ${origin}/v1/jobs -H "Authorization: Bearer $RONDO_API_KEY" \\\n  -H 'Content-Type: application/json' -d '${json}'`;
}

// Records of a JSON Lines text: their number, the first one, and the first line that is none.
export function inspected(text: string): { records: number; first: string; problem: string } {
  let records = 0;
  let first = "";
  let problem = "";
  text.split("\n").forEach((line, place) => {
    if (!line.trim()) return;
    records++;
    first ||= line;
    if (problem) return;
    try {
      if (typeof JSON.parse(line) !== "object") problem = `Line ${place + 1} is no JSON object.`;
    } catch {
      problem = `Line ${place + 1} is no JSON: ${line.slice(0, 60)}`;
    }
  });
  return { records, first, problem: records ? problem : "The file has no records." };
}
