// Submission of a job: method, model, data and settings, each explained.
import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { announce } from "../parts/announce";
import { Copy } from "../parts/copy";
import { Content } from "../parts/loaded";
import { Problem } from "../parts/states";
import { type ApiError, call, type Job, type Setting } from "../state/api";
import { models, stale } from "../state/live";
import { useLoaded } from "../state/load";
import { go, link, params, setParams } from "../state/route";
import { Data } from "./data";
import { Field, SettingField } from "./field";
import { Expected } from "./forecast";
import { METHODS, PLAIN, TASK_EXAMPLE, TASKS } from "./methods";
import { Program } from "./program";
import { bodyOf, checkInputs, curl, type Draft, FieldError } from "./request";
import { summary } from "./summary";

const OWN_FILE = "file";

function draftOf(kind: string): Draft {
  return {
    kind: kind as Draft["kind"],
    model: params.value.get("base") ?? "",
    data: "",
    validation: "",
    task: "reverse",
    tasks: "",
    command: "",
    files: {},
    name: "",
    ranks: "",
    gpus: "",
    settings: { ...METHODS[kind]!.proposed },
  };
}

export function Form() {
  const named = params.value.get("new") ?? "";
  const kind = named in METHODS ? named : "sft";
  const draft = useSignal<Draft>(draftOf(kind));
  useEffect(() => {
    if (draft.value.kind !== kind) draft.value = { ...draft.value, kind: kind as Draft["kind"], settings: { ...METHODS[kind]!.proposed } };
  }, [kind]);
  const set = (part: Partial<Draft>) => (draft.value = { ...draft.value, ...part });
  const loaded = useLoaded(async () => ({ kind, settings: (await call<{ data: Setting[] }>("GET", `/v1/jobs/settings?kind=${kind}`)).data }), [kind]);
  useEffect(() => {
    if (!draft.value.model && models.value?.length) set({ model: models.value[0]! });
  }, [models.value]);
  return (
    <>
      <div class="row title">
        <h1>New job</h1>
        <a href={link("jobs", { new: "", base: "" })}>All jobs</a>
      </div>
      <Content of={loaded} name="the settings">
        {(found) => <Fields draft={draft.value} set={set} settings={found.kind === kind ? found.settings : []} />}
      </Content>
    </>
  );
}

interface Props {
  draft: Draft;
  set: (part: Partial<Draft>) => void;
  settings: Setting[];
}

function Fields({ draft, set, settings }: Props) {
  const problem = useSignal({ field: "", text: "" });
  const busy = useSignal(false);
  const form = useRef<HTMLFormElement>(null);
  useEffect(() => void (problem.value = { field: "", text: "" }), [draft.kind]);
  const own = (field: string) => (problem.value.field === field ? problem.value.text : "");
  const submit = async () => {
    problem.value = { field: "", text: "" };
    busy.value = true;
    try {
      const body = bodyOf(draft, settings);
      checkInputs(draft);
      const job = await call<Job>("POST", "/v1/jobs", body);
      announce("The job was submitted.");
      go("jobs", { new: "", base: "", job: job.id, tab: "" });
    } catch (error) {
      const field = error instanceof FieldError ? error.field : (error as ApiError).param;
      problem.value = { field, text: (error as Error).message };
      (form.current?.querySelector(`[id="${CSS.escape(field)}"]`) as HTMLElement | null)?.focus();
    } finally {
      busy.value = false;
    }
  };
  return (
    <form
      class="submit"
      ref={form}
      onSubmit={(event) => {
        event.preventDefault();
        void submit();
      }}
    >
      <Methods kind={draft.kind} />
      {draft.kind === "script" ? <Program draft={draft} set={set} problemOf={own} /> : <Inputs draft={draft} set={set} problemOf={own} />}
      <Groups draft={draft} set={set} settings={settings} problemOf={own} />
      <section class="summary" aria-label="Summary">
        <h2>What will happen</h2>
        <p>{summary(draft, settings)}</p>
        {!PLAIN.includes(draft.kind) && <Expected draft={draft} settings={settings} />}
        <Problem text={problem.value.text} />
        <div class="row wrap">
          <button type="submit" class="main" disabled={busy.value || stale.value || !settings.length}>
            {busy.value ? "Submitting" : "Submit"}
          </button>
          <Copy label="Copy as curl" text={() => curlOf(draft, settings)} />
        </div>
      </section>
    </form>
  );
}

function Inputs({ draft, set, problemOf: own }: Omit<Props, "settings"> & { problemOf: (field: string) => string }) {
  const { example } = METHODS[draft.kind]!;
  const evaluated = draft.kind === "evaluate";
  return (
    <fieldset>
      <legend>Model and data</legend>
      <Field
        id="model"
        label={evaluated ? "Model" : "Base model"}
        help={`The model to ${evaluated ? "measure" : "train"}: one that this gateway serves, the model of a job, or ORG/NAME of the hub.`}
        problem={own("model")}
      >
        {(attributes) => <input {...attributes} required list="known-models" autocomplete="off" value={draft.model} onInput={(event) => set({ model: event.currentTarget.value })} />}
      </Field>
      <datalist id="known-models">
        {(models.value ?? []).map((each) => (
          <option key={each} value={each} />
        ))}
      </datalist>
      {draft.kind === "rl" ? (
        <Task draft={draft} set={set} problem={own("task")} example={example} />
      ) : (
        <Data id="data" label={evaluated ? "Held-out records" : "Training data"} hub value={draft.data} example={example} choose={(data) => set({ data })} problem={own("data")} />
      )}
      {evaluated && <Data id="task" label="Tasks" value={draft.tasks} example={TASK_EXAMPLE} choose={(tasks) => set({ tasks })} problem={own("task")} />}
    </fieldset>
  );
}

function curlOf(draft: Draft, settings: Setting[]): string {
  try {
    return curl(bodyOf(draft, settings), location.origin);
  } catch (error) {
    return (error as Error).message;
  }
}

function Methods({ kind }: { kind: string }) {
  return (
    <fieldset>
      <legend>Method</legend>
      <div class="methods">
        {Object.entries(METHODS).map(([name, method]) => (
          <label key={name} class={name === kind ? "method chosen" : "method"}>
            <input type="radio" name="kind" value={name} checked={name === kind} onChange={() => setParams({ new: name })} />
            <strong>{method.label}</strong>
            <span class="small">{method.text}</span>
          </label>
        ))}
      </div>
    </fieldset>
  );
}

function Task({ draft, set, problem, example }: { draft: Draft; set: Props["set"]; problem: string; example: string }) {
  const own = !(draft.task in TASKS);
  return (
    <>
      <Field id="task" label="Task" help="Prompts, and how answers are graded." problem={own ? "" : problem}>
        {(attributes) => (
          <select {...attributes} value={own ? OWN_FILE : draft.task} onChange={(event) => set({ task: event.currentTarget.value === OWN_FILE ? "" : event.currentTarget.value })}>
            {Object.entries(TASKS).map(([name, text]) => (
              <option key={name} value={name}>
                {name}: {text}
              </option>
            ))}
            <option value={OWN_FILE}>a file of your own, with the grader below</option>
          </select>
        )}
      </Field>
      {own && <Data id="task-file" label="Task file" value={draft.task} example={example} choose={(task) => set({ task })} problem={problem} />}
    </>
  );
}

function Groups({ draft, set, settings, problemOf }: Props & { problemOf: (field: string) => string }) {
  const text = useSignal("");
  const { first, example } = METHODS[draft.kind]!;
  const known = new Map(settings.map((each) => [each.name, each]));
  const field = (setting: Setting) => (
    <SettingField
      key={setting.name}
      setting={setting}
      value={draft.settings[setting.name] ?? ""}
      change={(value) => set({ settings: { ...draft.settings, [setting.name]: value } })}
      problem={problemOf(`settings.${setting.name}`)}
    />
  );
  const plain = PLAIN.includes(draft.kind);
  const gpus = (
    <Field id="resources.gpus" label="GPUs" help="GPUs of all processes together; 0 uses the CPU." problem={problemOf("resources.gpus")}>
      {(attributes) => <input {...attributes} inputMode="numeric" placeholder="default: 0" value={draft.gpus} onInput={(event) => set({ gpus: event.currentTarget.value })} />}
    </Field>
  );
  const words = text.value.toLowerCase();
  const others = settings.filter((each) => !first.includes(each.name) && `${each.name} ${each.description}`.toLowerCase().includes(words));
  const changed = settings.filter((each) => !first.includes(each.name) && draft.settings[each.name]).length;
  return (
    <>
      <fieldset>
        <legend>Settings</legend>
        <div class="grid-fields">
          <Field id="name" label="Name" help={plain ? "By which lists show the job." : "By which the model answers; without one, its hash."} problem={problemOf("name")}>
            {(attributes) => <input {...attributes} autocomplete="off" maxLength={64} placeholder="the job's hash" value={draft.name} onInput={(event) => set({ name: event.currentTarget.value })} />}
          </Field>
          {first.map((name) => known.get(name)).map((setting) => setting && field(setting))}
          {plain && gpus}
        </div>
      </fieldset>
      {!plain && (
        <details open={params.value.has("all")} onToggle={(event) => setParams({ all: event.currentTarget.open ? "1" : "" })}>
          <summary>
            All settings{changed > 0 && <span class="muted"> ({changed} changed)</span>}
          </summary>
          <div class="grid-fields">
            <Field id="resources.ranks" label="Processes" help="Processes that train together (torchrun)." problem={problemOf("resources.ranks")}>
              {(attributes) => <input {...attributes} inputMode="numeric" placeholder="default: 1" value={draft.ranks} onInput={(event) => set({ ranks: event.currentTarget.value })} />}
            </Field>
            {gpus}
          </div>
          {draft.kind !== "rl" && (
            <Data id="validation_data" label="Validation data" value={draft.validation} example={example} choose={(validation) => set({ validation })} problem={problemOf("validation_data")} />
          )}
          <label>
            Find a setting
            <input type="search" value={text.value} onInput={(event) => (text.value = event.currentTarget.value)} />
          </label>
          <div class="grid-fields">{others.map(field)}</div>
          {others.length === 0 && <p class="muted">No setting matches.</p>}
        </details>
      )}
    </>
  );
}
