// Names of keys, for the ids that other data hold.
import { signal } from "@preact/signals";
import { call, type ShownKey } from "./api";
import { admin, identity } from "./live";

const names = signal<Record<string, string>>({});

export async function loadNames(): Promise<void> {
  const known = admin.value ? (await call<{ data: ShownKey[] }>("GET", "/v1/keys")).data : [identity.value!];
  names.value = Object.fromEntries(known.map((each) => [each.id, each.name]));
}

export function nameOf(key: string): string {
  return names.value[key] ?? key;
}
