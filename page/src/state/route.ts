// The view and its parameters, held by the URL: #/playground?model=demo
import { computed, effect, signal } from "@preact/signals";

type Changes = Record<string, string | string[]>;

const hash = signal(location.hash);
addEventListener("hashchange", () => (hash.value = location.hash));

const route = computed(() => parse(hash.value));
export const view = computed(() => route.value.view);
export const params = computed(() => route.value.params);

// Parameters of each view when it was last shown, so that a return to it shows the same.
const latest = new Map<string, URLSearchParams>();
effect(() => void latest.set(view.value, params.value));

export function remembered(name: string): URLSearchParams {
  return new URLSearchParams(latest.get(name));
}

export function parse(text: string): { view: string; params: URLSearchParams } {
  const [path = "", query = ""] = text.replace(/^#\/?/, "").split("?");
  return { view: path || "playground", params: new URLSearchParams(query) };
}

export function link(name: string, changes: Changes = {}): string {
  const query = merged(remembered(name), changes).toString();
  return `#/${name}${query ? `?${query}` : ""}`;
}

export function go(name: string, changes: Changes = {}): void {
  location.hash = link(name, changes);
}

// Replaces parameters of the view without a step in the history. An empty list or text removes one.
export function setParams(changes: Changes): void {
  history.replaceState(null, "", link(view.value, changes));
  hash.value = location.hash;
}

function merged(query: URLSearchParams, changes: Changes): URLSearchParams {
  for (const [name, value] of Object.entries(changes)) {
    query.delete(name);
    for (const each of [value].flat()) if (each) query.append(name, each);
  }
  return query;
}
