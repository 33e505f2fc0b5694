// The view and its parameters, held by the URL: #/playground?model=demo
import { computed, signal } from "@preact/signals";

const hash = signal(location.hash);
addEventListener("hashchange", () => (hash.value = location.hash));

export const view = computed(() => parse(hash.value).view);
export const params = computed(() => parse(hash.value).params);

export function parse(text: string): { view: string; params: URLSearchParams } {
  const [path = "", query = ""] = text.replace(/^#\/?/, "").split("?");
  return { view: path || "playground", params: new URLSearchParams(query) };
}

export function go(name: string): void {
  location.hash = `#/${name}`;
}

// Replaces a parameter without a step in the history.
export function setParam(name: string, value: string): void {
  const { view, params } = parse(location.hash);
  if (value) params.set(name, value);
  else params.delete(name);
  const query = params.toString();
  history.replaceState(null, "", `#/${view}${query ? `?${query}` : ""}`);
  hash.value = location.hash;
}
