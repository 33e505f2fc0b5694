// Which metrics share a chart, and what a bad shape of each means.

export interface Group {
  title: string;
  explain: string;
  // Names of metrics; one that ends in "/" stands for all that begin so.
  metrics: string[];
  unit?: string;
  // Divides the values, for another unit than that of the metrics.
  scale?: number;
  zero?: boolean;
  logs?: boolean;
  stacked?: boolean;
}

export const PHASES = "seconds/";

export const ZERO_VARIANCE: Group = {
  title: "Zero variance",
  explain: "Share of groups whose samples all earned the same reward, which teach nothing, and shares that no sample or every sample solved. Near 1 with none solved: the task is too hard. Near 1 with all solved: it is too easy, or learned.",
  metrics: ["equal_groups", "solve_none", "solve_all"],
  unit: "share",
  zero: true,
};

export const MEMORY: Group = {
  title: "Memory",
  explain: "Memory of the first process at the end of each step, and its peak so far. Steady growth is a leak; a peak near the limit of the device means that a longer batch may not fit.",
  metrics: ["memory/"],
  unit: "GiB",
  scale: 2 ** 30,
  zero: true,
};

export const GROUPS: Group[] = [
  {
    title: "Reward",
    explain: "Mean reward of the sampled answers, its parts, and that of held-out prompts. Flat from the start: the task is too hard or the grader never rewards. Rising only in one part: the model may exploit the grader.",
    metrics: ["reward", "held_out/reward", "reward/"],
  },
  ZERO_VARIANCE,
  {
    title: "Loss",
    explain: "Loss a token, on training and held-out records. A held-out loss that rises while the training loss falls means overfitting; a sudden jump, a bad batch or a learning rate that is too high.",
    metrics: ["loss", "held_out/loss", "evaluate/loss"],
    logs: true,
  },
  {
    title: "Accuracy",
    explain: "Share of right next tokens, or of pairs in the right order. A value near 1 on the training data alone means that it was memorized.",
    metrics: ["accuracy", "token_accuracy", "held_out/accuracy", "evaluate/accuracy", "evaluate/token_accuracy", "margin"],
  },
  {
    title: "Sampler and learner",
    explain: "How far the engine's log-probabilities are from the learner's. It should stay small and level; growth means stale weights or different numerics.",
    metrics: ["sampler_kl", "logprob_diff", "kl"],
    logs: true,
    unit: "nats a token",
  },
  {
    title: "Staleness",
    explain: "Weight versions between a sampled token and the weights that it trains: mean and maximum. 0 in mode sync. A mean near the maximum means that generation runs as far ahead as it may.",
    metrics: ["stale", "stale_max"],
    unit: "versions",
    zero: true,
  },
  { title: "Answer length", explain: "Tokens an answer. Steady growth without more reward, or a fall to a few tokens, is a sign of reward hacking.", metrics: ["answer_tokens", "answer_tokens_p99"], unit: "tokens", zero: true },
  { title: "Entropy", explain: "Uncertainty of the sampled tokens. A fall to zero means that all answers are alike and nothing is explored.", metrics: ["entropy", "sampled_entropy"], unit: "nats a token", zero: true },
  { title: "Gradient norm", explain: "Norm before clipping. Spikes come before a diverging loss: lower the learning rate or clip.", metrics: ["grad_norm"], logs: true, zero: true },
  { title: "Learning rate", explain: "The schedule: warm-up, peak, decay.", metrics: ["lr"], zero: true },
  { title: "Throughput", explain: "Tokens of all processes. A drop means slow data, a busy machine or a straggler.", metrics: ["tokens_per_second"], unit: "tokens/s", zero: true },
  {
    title: "Phases",
    explain: "Time of a step by phase, stacked. Data or checkpoints that take a visible part slow the job down.",
    metrics: [PHASES],
    unit: "s a step",
    zero: true,
    stacked: true,
  },
  MEMORY,
];

export function metricsOf(group: Group, known: string[]): string[] {
  return group.metrics.flatMap((name) => (name.endsWith("/") ? known.filter((each) => each.startsWith(name)) : known.includes(name) ? [name] : []));
}

// What a chart calls a metric: without the name that all of the group begin with.
export function labelOf(metric: string): string {
  const prefix = [PHASES, ...MEMORY.metrics].find((each) => metric.startsWith(each)) ?? "";
  return metric.slice(prefix.length);
}
