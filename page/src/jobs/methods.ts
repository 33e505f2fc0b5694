// Kinds of jobs, what each needs, and the settings that most users change.

export interface Method {
  label: string;
  text: string;
  // The form of one line of the data.
  example: string;
  // Names of settings that are shown first.
  first: string[];
  // Values that the form proposes, where they differ from the defaults.
  proposed: Record<string, string>;
}

// Kinds that train nothing: no forecast, no curves, no model.
export const PLAIN = ["evaluate", "script"];

const COMMON = ["lr", "adapter.kind", "adapter.r"];

export const METHODS: Record<string, Method> = {
  sft: {
    label: "Supervised",
    text: "Learns to answer as the examples do. The usual start.",
    example: '{"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]}',
    first: ["epochs", ...COMMON, "evaluate.held_out"],
    proposed: { "adapter.kind": "lora" },
  },
  preference: {
    label: "Preference",
    text: "Learns from pairs of a better and a worse answer: DPO and related losses.",
    example: '{"prompt": "…", "chosen": "…", "rejected": "…"}',
    first: ["preference.loss", "preference.beta", "epochs", ...COMMON],
    proposed: { "adapter.kind": "lora", lr: "1e-5", epochs: "1" },
  },
  reward: {
    label: "Reward model",
    text: "Learns to score answers, from the same pairs. For reinforcement learning.",
    example: '{"prompt": "…", "chosen": "…", "rejected": "…"}',
    first: ["epochs", ...COMMON],
    proposed: { epochs: "1" },
  },
  rl: {
    label: "Reinforcement",
    text: "Samples answers, grades them, and learns from the rewards: GRPO and others.",
    example: '{"prompt": "…", "answer": "…"}',
    first: ["algorithm", "steps", "prompts_per_step", "samples_per_prompt", "lr", "max_tokens", "adapter.kind", "adapter.r", "grader"],
    proposed: { "adapter.kind": "lora", steps: "20" },
  },
  pretrain: {
    label: "Pretraining",
    text: "Continues or begins training on plain text.",
    example: '{"text": "…"}',
    first: ["steps", "lr", "tokens_per_step", "max_length", "adapter.kind"],
    proposed: {},
  },
  evaluate: {
    label: "Evaluation",
    text: "Measures a model on held-out records, on tasks, or on both. Trains nothing.",
    example: '{"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]}',
    first: ["evaluate.max_tokens", "precision", "tokens_per_microbatch", "max_length"],
    proposed: {},
  },
  script: {
    label: "Script",
    text: "Runs a program of your own on the gateway's machine. The key needs the scope code.",
    example: "",
    first: [],
    proposed: {},
  },
};

// One line of a file of tasks, of which a job of the kind evaluate may have one.
export const TASK_EXAMPLE = '{"prompt": "…", "choices": ["…", "…"], "answer": 1}';

export const TASKS: Record<string, string> = {
  reverse: "reverse a word",
  add: "add two numbers",
  sort: "sort digits",
  guess: "guess a number, over several turns",
  calculator: "use a calculator, with tool calls",
};
