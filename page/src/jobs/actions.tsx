// Buttons that change a job; what cannot be undone needs a confirmation.
import type { Signal } from "@preact/signals";
import { announce } from "../parts/announce";
import { confirmed } from "../parts/confirm";
import type { Job } from "../state/api";
import { stale } from "../state/live";
import { link } from "../state/route";
import { type Action, allowed, change, CONSEQUENCES, modelOf, titleOf } from "./job";

const LABELS: Record<Action, string> = { pause: "Pause", resume: "Resume", cancel: "Cancel", delete: "Delete" };

interface Props {
  job: Job;
  problem: Signal<string>;
  changed: (job: Job, action: Action) => void;
}

export function Actions({ job, problem, changed }: Props) {
  const model = modelOf(job);
  const act = async (action: Action) => {
    const text = CONSEQUENCES[action];
    if (text && !(await confirmed(`${LABELS[action]} ${titleOf(job)}?`, text, `${LABELS[action]} the job`))) return;
    problem.value = "";
    try {
      changed(await change(job, action), action);
      announce(`${LABELS[action]}: ${titleOf(job)}`);
    } catch (error) {
      problem.value = (error as Error).message;
    }
  };
  return (
    <span class="row actions">
      {model && (
        <a class="button" href={link("playground", { model })} aria-label={`Try ${titleOf(job)}`}>
          Try
        </a>
      )}
      {allowed(job).map((action) => (
        <button key={action} type="button" disabled={stale.value} aria-label={`${LABELS[action]} ${titleOf(job)}`} onClick={() => void act(action)}>
          {LABELS[action]}
        </button>
      ))}
    </span>
  );
}
