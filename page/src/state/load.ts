// Data of a view: requested when it is shown, and again while it stays visible.
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import type { ApiError } from "./api";
import { connected, identity } from "./live";

export interface Loaded<T> {
  data: T | null;
  problem: ApiError | null;
  reload: () => Promise<void>;
}

// Runs `load` when one of `inputs` or the key changes, after a lost connection, and at the interval `everyMs`, if set.
export function useLoaded<T>(load: () => Promise<T>, inputs: unknown[] = [], everyMs = 0): Loaded<T> {
  const data = useSignal<T | null>(null);
  const problem = useSignal<ApiError | null>(null);
  const reload = async () => {
    try {
      data.value = await load();
      problem.value = null;
    } catch (error) {
      problem.value = error as ApiError;
    }
  };
  useEffect(() => {
    if (!identity.value || (!connected.value && data.value !== null)) return;
    void reload();
    if (!everyMs) return;
    const timer = setInterval(() => document.visibilityState === "visible" && void reload(), everyMs);
    return () => clearInterval(timer);
  }, [identity.value?.id, connected.value, ...inputs]);
  return { data: data.value, problem: problem.value, reload };
}
