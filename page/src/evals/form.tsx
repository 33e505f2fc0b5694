// A new eval with its first run.
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { Field } from "../jobs/field";
import { announce } from "../parts/announce";
import { Problem } from "../parts/states";
import { call } from "../state/api";
import { models, stale } from "../state/live";
import { go, link } from "../state/route";
import { type Draft, type Eval, evalBody, GRADERS, runBody } from "./eval";

const EXAMPLE: Draft = {
  name: "",
  model: "",
  items: '{"question": "What is the capital of Peru?", "answer": "Lima"}\n{"question": "What is the capital of Kenya?", "answer": "Nairobi"}',
  prompt: "{{ item.question }}",
  grader: "ilike",
  reference: "{{ item.answer }}",
  source: 'def grade(sample, item):\n    return float(item["answer"].lower() in sample["output_text"].lower())\n',
  judge: "",
  question:
    "Question: {{ item.question }}\nExpected answer: {{ item.answer }}\nAnswer: {{ sample.output_text }}\nIs the answer correct?",
};

export function Form() {
  const draft = useSignal(EXAMPLE);
  const problem = useSignal("");
  const busy = useSignal(false);
  const set = (part: Partial<Draft>) => (draft.value = { ...draft.value, ...part });
  useEffect(() => {
    if (!draft.value.model && models.value?.length) set({ model: models.value[0]! });
  }, [models.value]);
  const submit = async () => {
    problem.value = "";
    busy.value = true;
    try {
      const run = runBody(draft.value);
      const made = await call<Eval>("POST", "/v1/evals", evalBody(draft.value));
      await call("POST", `/v1/evals/${made.id}/runs`, run);
      announce("The eval was created, and its first run started.");
      go("evals", { new: "", eval: made.id, compare: [] });
    } catch (error) {
      problem.value = (error as Error).message;
    } finally {
      busy.value = false;
    }
  };
  const { name, model, items, prompt, grader } = draft.value;
  return (
    <>
      <div class="row title">
        <h1>New eval</h1>
        <a href={link("evals", { new: "" })}>All evals</a>
      </div>
      <form class="eval-form" onSubmit={(event) => (event.preventDefault(), void submit())}>
        <Field id="eval-name" label="Name" help="For the list; without one, the id is shown.">
          {(attributes) => <input {...attributes} autocomplete="off" maxLength={256} value={name} onInput={(event) => set({ name: event.currentTarget.value })} />}
        </Field>
        <Field id="eval-model" label="Model" help={models.value?.length ? "The model whose answers are graded." : "No model is ready: start one with rondo up MODEL."}>
          {(attributes) => (
            <select {...attributes} required value={model} onChange={(event) => set({ model: event.currentTarget.value })}>
              {(models.value ?? []).map((each) => (
                <option key={each}>{each}</option>
              ))}
            </select>
          )}
        </Field>
        <Field id="eval-items" label="Items" help="One JSON object a line. Its fields are used by the prompt and the reference.">
          {(attributes) => <textarea {...attributes} class="mono" rows={6} required value={items} onInput={(event) => set({ items: event.currentTarget.value })} />}
        </Field>
        <Field id="eval-prompt" label="Prompt" help="Sent as the user's message; {{ item.FIELD }} is replaced.">
          {(attributes) => <textarea {...attributes} class="mono" rows={2} required value={prompt} onInput={(event) => set({ prompt: event.currentTarget.value })} />}
        </Field>
        <Field id="eval-grader" label="An answer passes if it" help="Further graders, and several in one eval, are set through the API.">
          {(attributes) => (
            <select {...attributes} value={grader} onChange={(event) => set({ grader: event.currentTarget.value })}>
              {Object.entries(GRADERS).map(([value, text]) => (
                <option key={value} value={value}>
                  {text}
                </option>
              ))}
            </select>
          )}
        </Field>
        <Grading draft={draft.value} set={set} />
        <Problem text={problem.value} />
        <div class="row">
          <button type="submit" class="main" disabled={busy.value || stale.value || !model}>
            {busy.value ? "Starting" : "Create and run"}
          </button>
        </div>
      </form>
    </>
  );
}

function Grading({ draft, set }: { draft: Draft; set: (part: Partial<Draft>) => void }) {
  if (draft.grader === "python") {
    return (
      <Field id="eval-source" label="Python" help="grade(sample, item) returns a number; sample has output_text. It runs in the sandbox.">
        {(attributes) => <textarea {...attributes} class="mono" rows={5} required spellcheck={false} value={draft.source} onInput={(event) => set({ source: event.currentTarget.value })} />}
      </Field>
    );
  }
  if (draft.grader !== "label_model") {
    return (
      <Field id="eval-reference" label="Reference" help="The expected answer; {{ item.FIELD }} is replaced.">
        {(attributes) => <input {...attributes} class="mono" required value={draft.reference} onInput={(event) => set({ reference: event.currentTarget.value })} />}
      </Field>
    );
  }
  return (
    <>
      <Field id="eval-judge" label="Judge" help="The model that labels each answer correct or incorrect.">
        {(attributes) => (
          <select {...attributes} value={draft.judge || draft.model} onChange={(event) => set({ judge: event.currentTarget.value })}>
            {(models.value ?? []).map((each) => (
              <option key={each}>{each}</option>
            ))}
          </select>
        )}
      </Field>
      <Field id="eval-question" label="Question to the judge" help="{{ sample.output_text }} is the answer; {{ item.FIELD }} is replaced.">
        {(attributes) => <textarea {...attributes} class="mono" rows={4} required value={draft.question} onInput={(event) => set({ question: event.currentTarget.value })} />}
      </Field>
    </>
  );
}
