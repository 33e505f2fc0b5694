// An action of a view whose error is shown in it.
import { type Signal, useSignal } from "@preact/signals";

// Runs actions; `after` follows each, whether it succeeded or not.
export function useAttempt(after?: () => unknown): { problem: Signal<string>; attempt: (action: () => Promise<unknown>) => Promise<void> } {
  const problem = useSignal("");
  const attempt = async (action: () => Promise<unknown>) => {
    problem.value = "";
    try {
      await action();
    } catch (error) {
      problem.value = (error as Error).message;
    }
    await after?.();
  };
  return { problem, attempt };
}
