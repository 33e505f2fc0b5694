// Command palette: models, views and actions.
import { signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { type Choice, Picker } from "../parts/picker";
import { call, type Job, type Model } from "../state/api";
import { models, restart } from "../state/live";
import { useLoaded } from "../state/load";
import { go, remembered } from "../state/route";
import { theme, THEMES } from "../state/theme";
import { shortcuts } from "./shortcuts";
import { VIEWS } from "./views";

export const palette = signal(false);

const JOBS = 100;

interface Known {
  jobs: Job[];
  registered: Model[];
}

async function load(): Promise<Known> {
  const [jobs, registered] = await Promise.all([list<Job>(`/v1/jobs?limit=${JOBS}`), list<Model>(`/v1/registry?limit=${JOBS}`)]);
  return { jobs, registered };
}

// Empty for a key that may not list them.
async function list<T>(path: string): Promise<T[]> {
  try {
    return (await call<{ data: T[] }>("GET", path)).data;
  } catch {
    return [];
  }
}

export function modelChoices(): Choice[] {
  return (models.value ?? []).map((model) => ({
    group: "Model",
    label: model,
    act: () => go("playground", { model: [model, ...remembered("playground").getAll("model").slice(1)] }),
  }));
}

export function Palette() {
  const box = useRef<HTMLDialogElement>(null);
  const known = useLoaded(load).data ?? { jobs: [], registered: [] };
  useEffect(() => {
    const before = document.activeElement as HTMLElement | null;
    box.current?.showModal();
    return () => before?.focus();
  }, []);
  const close = () => (palette.value = false);
  return (
    <dialog
      ref={box}
      class="palette"
      aria-label="Command palette"
      onCancel={(event) => (event.preventDefault(), close())}
      onMouseDown={(event) => event.target === box.current && close()}
    >
      <Picker id="palette" label="Command" placeholder="View, model, job or action" choices={choices(known)} done={close} />
    </dialog>
  );
}

function choices({ jobs, registered }: Known): Choice[] {
  return [
    ...VIEWS.map((view) => ({
      group: "View",
      label: view.label,
      hint: `g ${view.shortcut}`,
      act: () => go(view.name),
    })),
    ...modelChoices(),
    ...jobs.map((job) => ({ group: "Job", label: job.name ?? job.id, hint: job.state, act: () => go("jobs", { job: job.id, new: "", curves: "", tab: "" }) })),
    ...registered.map((model) => ({ group: "Registry", label: model.name ?? model.id, hint: model.kind, act: () => go("models", { model: model.id }) })),
    { group: "Action", label: "New job", act: () => go("jobs", { new: "sft", job: "" }) },
    { group: "Action", label: "New eval", act: () => go("evals", { new: "1", eval: "" }) },
    { group: "Action", label: "Dead letters", act: () => go("queue", { tab: "Dead letters" }) },
    { group: "Action", label: "Reinforcement learning jobs", act: () => go("rl") },
    ...THEMES.map((name) => ({ group: "Theme", label: name, act: () => (theme.value = name) })),
    { group: "Action", label: "Create an API key", act: () => go("keys", { create: "1" }) },
    { group: "Action", label: "Show logs", act: () => go("engines", { tab: "logs" }) },
    { group: "Action", label: "Reconnect to the gateway", act: restart },
    { group: "Action", label: "Keyboard shortcuts", hint: "?", act: () => (shortcuts.value = true) },
  ];
}
