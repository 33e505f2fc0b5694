// Evals, runs and graded items as OpenAI's API shows them.
import { call } from "../state/api";

export interface Eval {
  id: string;
  name: string | null;
  created_at: number;
  testing_criteria: { name?: string; type?: string }[];
}

export interface Run {
  id: string;
  eval_id: string;
  name: string | null;
  created_at: number;
  status: "queued" | "in_progress" | "completed" | "canceled" | "failed";
  model: string | null;
  data_source: Record<string, unknown>;
  result_counts: { total: number; passed: number; failed: number; errored: number };
  per_testing_criteria_results: { testing_criteria: string; passed: number; failed: number }[];
  error: { message?: string } | null;
}

export interface Graded {
  id: string;
  status: string;
  datasource_item_id: number;
  datasource_item: Record<string, unknown>;
  results: { name?: string; passed?: boolean; score?: number | null }[];
  sample: { input: { role?: string; content?: string }[]; output: { content?: string }[]; error?: { message?: string } | null };
}

export const TONES: Record<string, string> = { completed: "good", pass: "good", failed: "bad", fail: "bad", error: "bad", canceled: "warn" };
const RUNNING = ["queued", "in_progress"];
const PAGE = 100;

export function running(run: Run): boolean {
  return RUNNING.includes(run.status);
}

// A run without a name has its id as the name.
export function titleOf(run: Run): string {
  const named = run.name && run.name !== run.id ? run.name : null;
  return named ?? run.model ?? run.id;
}

// Share of the graded items that passed all criteria.
export function score(run: Run): number | null {
  const { passed, failed, errored } = run.result_counts;
  const graded = passed + failed + errored;
  return graded ? passed / graded : null;
}

export function outputOf(item: Graded): string {
  return item.sample.error?.message ?? item.sample.output.map((each) => each.content ?? "").join("\n");
}

export async function all<T extends { id: string }>(path: string, most: number): Promise<{ data: T[]; more: boolean }> {
  const data: T[] = [];
  let more = true;
  while (more && data.length < most) {
    const after = data.length ? `&after=${encodeURIComponent(data.at(-1)!.id)}` : "";
    const page = await call<{ data: T[]; has_more: boolean }>("GET", `${path}${path.includes("?") ? "&" : "?"}limit=${PAGE}${after}`);
    data.push(...page.data);
    more = page.has_more && page.data.length > 0;
  }
  return { data, more };
}

// The request that grades what one model answers to the items.
export interface Draft {
  name: string;
  model: string;
  items: string;
  prompt: string;
  grader: string;
  // For the graders that compare.
  reference: string;
  // Source of a Python grader.
  source: string;
  // Model and question of a judge.
  judge: string;
  question: string;
}

export const GRADERS: Record<string, string> = {
  eq: "equals the reference",
  ilike: "contains the reference",
  fuzzy_match: "is similar to the reference",
  python: "scores at least 0.5 by a Python function",
  label_model: "is judged correct by a model",
};

const ANSWER = "{{ sample.output_text }}";
const LABELS = ["correct", "incorrect"];

function criterion(draft: Draft): Record<string, unknown> {
  const text = { name: "answer", input: ANSWER, reference: draft.reference };
  switch (draft.grader) {
    case "fuzzy_match":
      return { ...text, type: "text_similarity", evaluation_metric: draft.grader, pass_threshold: 0.8 };
    case "python":
      return { name: "answer", type: "python", source: draft.source, pass_threshold: 0.5 };
    case "label_model": {
      const input = [{ role: "user", content: draft.question }];
      return { name: "answer", type: "label_model", model: draft.judge || draft.model, input, labels: LABELS, passing_labels: LABELS.slice(0, 1) };
    }
    default:
      return { ...text, type: "string_check", operation: draft.grader };
  }
}

export function evalBody(draft: Draft): unknown {
  return {
    name: draft.name.trim() || undefined,
    data_source_config: { type: "custom", item_schema: { type: "object" }, include_sample_schema: true },
    testing_criteria: [criterion(draft)],
  };
}

export function runBody(draft: Draft): unknown {
  const lines = draft.items.split("\n").filter((each) => each.trim());
  const content = lines.map((line, place) => {
    try {
      return { item: JSON.parse(line) as unknown };
    } catch {
      throw new Error(`Items: line ${place + 1} is not valid JSON: ${line.slice(0, 60)}`);
    }
  });
  if (!content.length) throw new Error("Items: give at least one line.");
  return {
    data_source: {
      type: "completions",
      model: draft.model,
      input_messages: { type: "template", template: [{ role: "user", content: draft.prompt }] },
      source: { type: "file_content", content },
    },
  };
}
