// The request that the form submits, and the same as a shell command.
import type { NewJob, Setting } from "../state/api";
import { PLAIN } from "./methods";

export interface Draft {
  kind: NewJob["kind"];
  model: string;
  data: string;
  validation: string;
  task: string;
  // evaluate: a file of tasks.
  tasks: string;
  // script: program and arguments as in a shell, and ids of files by their names in the working folder.
  command: string;
  files: Record<string, string>;
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
  const rest = { ...(draft.name.trim() ? { name: draft.name.trim() } : {}), resources: resources(draft) as NewJob["resources"] };
  if (draft.kind === "script") return { kind: "script", model: "", settings: {}, command: words(draft.command), ...(Object.keys(draft.files).length ? { files: draft.files } : {}), ...rest };
  const settings: Record<string, unknown> = {};
  for (const setting of known) {
    const text = draft.settings[setting.name]?.trim();
    if (text) settings[setting.name] = valueOf(setting, text);
  }
  return { kind: draft.kind, model: draft.model.trim(), ...inputs(draft), settings, ...rest };
}

function inputs(draft: Draft): Partial<NewJob> {
  const data = draft.data.trim();
  if (draft.kind === "rl") return { task: draft.task };
  if (draft.kind === "evaluate") return { ...(data ? { data } : {}), ...(draft.tasks ? { task: draft.tasks } : {}) };
  return { data, ...(draft.validation ? { validation_data: draft.validation } : {}) };
}

// Throws for a draft without the inputs that its kind needs.
export function checkInputs(draft: Draft): void {
  if (draft.kind === "script") {
    if (!words(draft.command).length) throw new FieldError("command", "Give the program and its arguments.");
  } else if (draft.kind === "rl") {
    if (!draft.task) throw new FieldError("task", "Choose the data.");
  } else if (!draft.data.trim() && !(draft.kind === "evaluate" && draft.tasks)) {
    throw new FieldError("data", draft.kind === "evaluate" ? "Choose the records or the tasks." : "Choose the data.");
  }
}

// Words of a command, with the quotes and backslashes of a shell; nothing else has a meaning.
export function words(text: string): string[] {
  const found: string[] = [];
  let word: string | null = null;
  for (const [part] of text.matchAll(/'[^']*'|"(?:\\.|[^"\\])*"|\\[^]|\s+|[^\s'"\\]+|[^]/g)) {
    const first = part[0]!;
    if (/\s/.test(first)) {
      if (word !== null) found.push(word);
      word = null;
    } else if ((first === "'" || first === '"') && part.length > 1) {
      word = (word ?? "") + (first === "'" ? part.slice(1, -1) : part.slice(1, -1).replace(/\\(["\\])/g, "$1"));
    } else if (first === "'" || first === '"') {
      throw new FieldError("command", `A quote is not closed: ${first}`);
    } else {
      word = (word ?? "") + (first === "\\" ? part.slice(1) : part);
    }
  }
  if (word !== null) found.push(word);
  return found;
}

// The others have their defaults.
function resources(draft: Draft): Partial<NewJob["resources"]> {
  return { ...(draft.ranks.trim() && !PLAIN.includes(draft.kind) ? { ranks: Number(draft.ranks) } : {}), ...(draft.gpus.trim() ? { gpus: Number(draft.gpus) } : {}) };
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
