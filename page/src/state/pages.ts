// Lists that the gateway returns in pages.
import { call } from "./api";

export interface Pages<T> {
  data: T[];
  // Whether the gateway has further rows.
  more: boolean;
}

// The first `limit` rows of a list, in pages of `size`; `cursor` is the query field with the last id of the page before.
export async function loadPages<T extends { id: string }>(path: string, limit: number, size: number, cursor = "after"): Promise<Pages<T>> {
  const data: T[] = [];
  let more = true;
  while (more && data.length < limit) {
    const last = data.length ? `&${cursor}=${encodeURIComponent(data.at(-1)!.id)}` : "";
    const page = await call<{ data: T[]; has_more: boolean }>("GET", `${path}?limit=${size}${last}`);
    data.push(...page.data);
    more = page.has_more && page.data.length > 0;
  }
  return { data, more };
}
