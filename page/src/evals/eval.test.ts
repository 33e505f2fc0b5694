import { expect, test, vi } from "vitest";

vi.stubGlobal("sessionStorage", { getItem: () => null });
const { evalBody, runBody, score } = await import("./eval");

const DRAFT = { name: "", model: "m", items: '{"a": 1}\n\n{"a": 2}', prompt: "{{ item.a }}", grader: "eq", reference: "x", source: "def grade(sample, item): return 1", judge: "", question: "{{ sample.output_text }}?" };

test("each line of the items is one, and a wrong one is named", () => {
  expect(JSON.stringify(runBody(DRAFT))).toContain('"content":[{"item":{"a":1}},{"item":{"a":2}}]');
  expect(() => runBody({ ...DRAFT, items: '{"a": 1}\n{' })).toThrow("line 2");
  expect(() => runBody({ ...DRAFT, items: " " })).toThrow("at least one");
});

test("similarity is another grader than comparison", () => {
  expect(JSON.stringify(evalBody(DRAFT))).toContain('"string_check"');
  expect(JSON.stringify(evalBody({ ...DRAFT, grader: "fuzzy_match" }))).toContain('"text_similarity"');
});

test("a Python function and a judge are criteria with their own fields", () => {
  const criterion = (part: object) => (evalBody({ ...DRAFT, ...part }) as { testing_criteria: Record<string, unknown>[] }).testing_criteria[0]!;
  expect(criterion({ grader: "python" })).toEqual({ name: "answer", type: "python", source: DRAFT.source, pass_threshold: 0.5 });
  expect(criterion({ grader: "label_model" }).model).toBe("m");
  expect(criterion({ grader: "label_model", judge: "j" })).toMatchObject({ model: "j", labels: ["correct", "incorrect"], passing_labels: ["correct"] });
});

test("a run without graded items has no score", () => {
  const run = (passed: number, failed: number) => ({ result_counts: { total: 4, passed, failed, errored: 0 } }) as Parameters<typeof score>[0];
  expect(score(run(0, 0))).toBe(null);
  expect(score(run(1, 3))).toBe(0.25);
});
