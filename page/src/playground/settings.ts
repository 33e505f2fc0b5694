// Parameters of a request, as the form and the URL hold them. A parameter without a value is not sent.

export interface Settings {
  system: string;
  numbers: Partial<Record<NumberName, number>>;
  stop: string;
  effort: string;
  logprobs: boolean;
  format: "text" | "json_object" | "json_schema";
  schema: string;
  tools: string;
  toolChoice: string;
}

export const NUMBERS = {
  temperature: { label: "Temperature", least: 0, most: 2, step: 0.1, help: "0 always takes the likeliest token." },
  max_tokens: { label: "Max tokens", least: 1, most: 1_000_000, step: 1, help: "Longest response." },
  top_p: { label: "Top p", least: 0, most: 1, step: 0.05, help: "Smallest set of tokens with this probability." },
  top_k: { label: "Top k", least: -1, most: 100_000, step: 1, help: "Number of likeliest tokens." },
  min_p: { label: "Min p", least: 0, most: 1, step: 0.01, help: "Least probability, relative to the likeliest." },
  seed: { label: "Seed", least: 0, most: 2 ** 53 - 1, step: 1, help: "The same seed repeats a response." },
  presence_penalty: { label: "Presence penalty", least: -2, most: 2, step: 0.1, help: "Against tokens that occurred." },
  frequency_penalty: { label: "Frequency penalty", least: -2, most: 2, step: 0.1, help: "Grows with each occurrence." },
  repetition_penalty: { label: "Repetition penalty", least: 0.01, most: 2, step: 0.05, help: "1 is no penalty; counts the prompt." },
} as const;
export type NumberName = keyof typeof NUMBERS;
export const NUMBER_NAMES = Object.keys(NUMBERS) as NumberName[];
export const EFFORTS = ["none", "minimal", "low", "medium", "high"];
export const FORMATS = { text: "Text", json_object: "JSON object", json_schema: "JSON schema" } as const;
export const TOOL_CHOICES = ["auto", "required", "none"];

const TEXTS = ["system", "stop", "effort", "schema", "tools", "toolChoice"] as const;
const DEFAULT_TOKENS = 512;

export function defaults(): Settings {
  return {
    system: "",
    numbers: { max_tokens: DEFAULT_TOKENS },
    stop: "",
    effort: "",
    logprobs: false,
    format: "text",
    schema: "",
    tools: "",
    toolChoice: "",
  };
}

export function fromParams(params: URLSearchParams): Settings {
  const found = defaults();
  for (const name of NUMBER_NAMES) {
    const text = params.get(name);
    if (text !== null && Number.isFinite(Number(text))) found.numbers[name] = Number(text);
  }
  for (const name of TEXTS) found[name] = params.get(name) ?? "";
  const format = params.get("format") ?? "text";
  if (format in FORMATS) found.format = format as Settings["format"];
  found.logprobs = params.has("logprobs");
  return found;
}

// The parameters that differ from the defaults; the others are empty.
export function toParams(settings: Settings): Record<string, string> {
  const found: Record<string, string> = {};
  for (const name of NUMBER_NAMES) {
    const value = settings.numbers[name];
    found[name] = value === undefined || value === defaults().numbers[name] ? "" : String(value);
  }
  for (const name of TEXTS) found[name] = settings[name];
  found.format = settings.format === "text" ? "" : settings.format;
  found.logprobs = settings.logprobs ? "1" : "";
  return found;
}

// How many parameters differ from the defaults.
export function changed(settings: Settings): number {
  return Object.values(toParams(settings)).filter(Boolean).length;
}
