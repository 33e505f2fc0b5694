import { describe, expect, it, vi } from "vitest";
import type { Job, Setting } from "../state/api";

vi.stubGlobal("sessionStorage", { getItem: () => null });
vi.stubGlobal("location", { hash: "" });
vi.stubGlobal("addEventListener", () => undefined);
const { bodyOf, checkInputs, curl, inspected, words } = await import("./request");
const { summary } = await import("./summary");
const { allowed, duration, modelOf, remaining } = await import("./job");
const { metricsOf, GROUPS } = await import("./groups");

const setting = (name: string, type: Setting["type"], more: Partial<Setting> = {}): Setting => ({ name, type, description: "", default: null, choices: [], minimum: null, maximum: null, ...more });
const SETTINGS = [setting("lr", "number", { default: 3e-4 }), setting("steps", "integer", { default: 100 }), setting("betas", "json"), setting("adapter.kind", "choice"), setting("adapter.r", "integer", { default: 16 }), setting("share", "boolean")];
const draft = { kind: "sft" as const, model: " demo ", data: "file-1", validation: "", task: "reverse", tasks: "", command: "", files: {}, name: "", ranks: "", gpus: "", settings: {} };
const job = (more: Partial<Job>): Job => ({ id: "job-1", kind: "sft", state: "running", name: null, hash: "ab", step: 10, steps: 40, started: 100, ended: null, ...more }) as Job;

describe("a submitted form", () => {
  it("has the settings that were filled, by their types", () => {
    const settings = { lr: "1e-3", steps: "", betas: "[0.9, 0.99]", "adapter.kind": "lora", share: "false" };
    expect(bodyOf({ ...draft, settings }, SETTINGS)).toEqual({
      kind: "sft",
      model: "demo",
      data: "file-1",
      settings: { lr: 0.001, betas: [0.9, 0.99], "adapter.kind": "lora", share: false },
      resources: {},
    });
    expect(bodyOf({ ...draft, gpus: "2" }, SETTINGS).resources).toEqual({ gpus: 2 });
    expect(bodyOf({ ...draft, kind: "rl" }, SETTINGS)).toMatchObject({ task: "reverse" });
  });
  it("has the inputs of an evaluation", () => {
    const evaluation = { ...draft, kind: "evaluate" as const };
    expect(bodyOf({ ...evaluation, tasks: "file-2" }, [])).toEqual({ kind: "evaluate", model: "demo", data: "file-1", task: "file-2", settings: {}, resources: {} });
    expect(bodyOf({ ...evaluation, data: "", tasks: "file-2" }, [])).not.toHaveProperty("data");
    expect(bodyOf({ ...evaluation, validation: "file-3" }, [])).not.toHaveProperty("validation_data");
    expect(() => checkInputs({ ...evaluation, data: "", tasks: "file-2" })).not.toThrow();
    expect(() => checkInputs({ ...evaluation, data: "" })).toThrowError(expect.objectContaining({ field: "data" }));
    expect(summary({ ...evaluation, tasks: "file-2" }, SETTINGS)).toContain("measures demo on held-out records and tasks, on the CPU");
  });
  it("has the command and the files of a script, and no settings", () => {
    const script = { ...draft, kind: "script" as const, command: 'python my.py "two words"', files: { "my.py": "file-1" }, settings: { lr: "1" } };
    expect(bodyOf({ ...script, name: "mine", ranks: "2", gpus: "1" }, SETTINGS)).toEqual({
      kind: "script",
      model: "",
      command: ["python", "my.py", "two words"],
      files: { "my.py": "file-1" },
      settings: {},
      name: "mine",
      resources: { gpus: 1 },
    });
    expect(bodyOf({ ...script, files: {} }, [])).not.toHaveProperty("files");
    expect(() => checkInputs({ ...script, command: " " })).toThrowError(expect.objectContaining({ field: "command" }));
    expect(summary(script, SETTINGS)).toContain("in a folder with my.py, on the CPU");
  });
  it("divides a command as a shell does", () => {
    expect(words("  a  b\tc\n")).toEqual(["a", "b", "c"]);
    expect(words(`--x='a "b"' "c \\"d\\" \\n" e\\ f ''`)).toEqual(['--x=a "b"', 'c "d" \\n', "e f", ""]);
    expect(words("")).toEqual([]);
    expect(() => words("a 'b")).toThrowError(expect.objectContaining({ field: "command" }));
  });
  it("names the field of a wrong value", () => {
    for (const [name, text] of [["lr", "fast"], ["steps", "1.5"], ["betas", "[0.9"]]) {
      expect(() => bodyOf({ ...draft, settings: { [name!]: text! } }, SETTINGS)).toThrowError(expect.objectContaining({ field: `settings.${name}` }));
    }
  });
  it("is a shell command, with its quotes escaped", () => {
    expect(curl(bodyOf({ ...draft, name: "it's" }, []), "http://x")).toContain(`"name": "it'\\''s"`);
  });
  it("is described", () => {
    const text = summary({ ...draft, name: "facts", settings: { "adapter.kind": "lora" } }, SETTINGS);
    expect(text).toContain("trains a LoRA of rank 16 over demo for 100 steps, with a learning rate of 0.0003, on the CPU");
    expect(text).toContain("answers as facts, on an engine of the base model");
  });
});

describe("a data file", () => {
  it("is counted, and its first wrong line named", () => {
    expect(inspected('{"a": 1}\n\n{"b": 2}\n')).toEqual({ records: 2, first: '{"a": 1}', problem: "" });
    expect(inspected('{"a": 1}\n{"b": ').problem).toBe('Line 2 is no JSON: {"b": ');
    expect(inspected("1\n").problem).toBe("Line 1 is no JSON object.");
    expect(inspected("\n").problem).toBe("The file has no records.");
  });
});

describe("a job", () => {
  it("has the actions of its state, and a model when it has succeeded", () => {
    expect(allowed(job({}))).toEqual(["pause", "cancel"]);
    expect(allowed(job({ state: "paused" }))).toEqual(["resume", "cancel"]);
    expect(allowed(job({ state: "failed" }))).toEqual(["delete"]);
    expect([modelOf(job({})), modelOf(job({ state: "succeeded" })), modelOf(job({ state: "succeeded", name: "facts" }))]).toEqual([null, "ab", "facts"]);
    expect(modelOf(job({ kind: "evaluate", state: "succeeded" }))).toBeNull();
  });
  it("has a duration and a remaining time", () => {
    expect(duration(job({}), 160_000)).toBe(60_000);
    expect(remaining(job({}), 160_000)).toBe("3 min");
    expect(remaining(job({ state: "queued" }), 160_000)).toBe("");
  });
  it("has metrics in groups, with all parts of the reward", () => {
    expect(metricsOf(GROUPS[0]!, ["loss", "reward", "reward/correct", "reward/length"])).toEqual(["reward", "reward/correct", "reward/length"]);
  });
});
