// What a submitted job will do, in words.
import type { Setting } from "../state/api";
import { METHODS, PLAIN } from "./methods";
import type { Draft } from "./request";

const WEIGHTS: Record<string, string> = { none: "all weights", lora: "a LoRA", tokenformer: "a Tokenformer adapter" };

export function summary(draft: Draft, settings: Setting[]): string {
  const value = (name: string) => draft.settings[name]?.trim() || text(settings.find((each) => each.name === name)?.default);
  if (PLAIN.includes(draft.kind)) return plain(draft);
  const method = METHODS[draft.kind]!.label.toLowerCase();
  const adapter = value("adapter.kind") || "none";
  const weights = adapter === "lora" ? `${WEIGHTS.lora} of rank ${value("adapter.r")}` : (WEIGHTS[adapter] ?? adapter);
  const length = draft.kind === "rl" || !value("epochs") || draft.settings.steps ? `${value("steps")} steps` : `${value("epochs")} epochs`;
  const samples = draft.kind === "rl" ? `, each with ${value("samples_per_prompt")} answers to ${value("prompts_per_step")} prompts` : "";
  const result = draft.name.trim() || "the job's hash";
  return (
    `A ${method} job trains ${weights} over ${draft.model.trim() || "the base model"} for ${length}${samples}, with a learning rate of ${value("lr")}, on ${device(draft)}. ` +
    `It waits in the queue until a slot is free. Its model then answers as ${result}` +
    (adapter === "lora" ? ", on an engine of the base model." : ".")
  );
}

function plain(draft: Draft): string {
  if (draft.kind === "script") {
    const files = Object.keys(draft.files);
    return `The job runs ${draft.command.trim() || "the program"}${files.length ? ` in a folder with ${files.join(", ")}` : ""}, on ${device(draft)}. It waits in the queue until a slot is free. The output is its log.`;
  }
  const on = [draft.data.trim() && "held-out records", draft.tasks && "tasks"].filter(Boolean).join(" and ") || "records or tasks";
  return `An evaluation measures ${draft.model.trim() || "the model"} on ${on}, on ${device(draft)}. It waits in the queue until a slot is free. The job then shows the scores.`;
}

function device({ gpus }: Draft): string {
  return Number(gpus) ? `${gpus} GPU${gpus === "1" ? "" : "s"}` : "the CPU";
}

function text(value: unknown): string {
  return value === null || value === undefined ? "" : String(value);
}
