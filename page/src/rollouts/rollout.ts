// Rollouts of a job as the gateway lists them, and what a step of them amounts to.

export interface Rollout {
  id: string;
  step: number;
  problem: string;
  outcome: string | null;
  reward: number | null;
  parts: Record<string, number>;
  advantage: number | null;
  finish_reason: string;
  prompt_tokens: number;
  tokens: number;
  sampled: number;
  versions: number[];
  prompt?: string;
  text?: string;
}

export interface Piece {
  token_ids: number[];
  sampled: boolean[];
  logprobs: (number | null)[];
  versions: number[];
  advantages: (number | null)[];
  tokens: string[] | null;
}

export interface WholeRollout extends Rollout {
  messages: { role?: string; content?: string }[];
  detail: string;
  text: string;
  pieces: Piece[];
}

export interface Page {
  data: Rollout[];
  has_more: boolean;
  last_id: string | null;
  steps: number[];
}

export interface Alarm {
  alarm: string;
  step: number;
  since: number;
  saw: string;
  advice: string;
  over: boolean;
}

// Samples of one prompt.
export interface Group {
  problem: string;
  prompt: string;
  samples: Rollout[];
  mean: number | null;
  // All rewards are equal: the group teaches nothing.
  flat: boolean;
}

export function groupsOf(rollouts: Rollout[]): Group[] {
  const found = new Map<string, Rollout[]>();
  for (const each of rollouts) {
    const id = each.id.slice(0, each.id.lastIndexOf("-"));
    found.set(id, [...(found.get(id) ?? []), each]);
  }
  return [...found.values()].map((samples) => {
    const rewards = samples.map((each) => each.reward).filter((each) => each !== null);
    return {
      problem: samples[0]!.problem,
      prompt: samples[0]!.prompt ?? "",
      samples,
      mean: mean(rewards),
      flat: samples.length > 1 && rewards.length === samples.length && rewards.every((each) => each === rewards[0]),
    };
  });
}

export function mean(values: number[]): number | null {
  return values.length ? values.reduce((sum, each) => sum + each, 0) / values.length : null;
}
