import { describe, expect, it, vi } from "vitest";

vi.stubGlobal("sessionStorage", { getItem: () => null });
vi.stubGlobal("location", { hash: "" });
vi.stubGlobal("addEventListener", () => undefined);
const { loadPages } = await import("./pages");

// A list of `total` rows; the paths that were requested.
function listOf(total: number): string[] {
  const paths: string[] = [];
  vi.stubGlobal("fetch", async (path: string) => {
    paths.push(path);
    const query = new URL(path, "http://x").searchParams;
    const begin = Number(query.get("after") ?? query.get("before") ?? -1) + 1;
    const end = Math.min(total, begin + Number(query.get("limit")));
    const data = Array.from({ length: end - begin }, (_, place) => ({ id: String(begin + place) }));
    return Response.json({ data, has_more: end < total });
  });
  return paths;
}

describe("a list in pages", () => {
  it("has the first page, and whether there is more", async () => {
    const paths = listOf(250);
    const { data, more } = await loadPages("/v1/batches", 100, 100);
    expect([data.length, more]).toEqual([100, true]);
    expect(paths).toEqual(["/v1/batches?limit=100"]);
  });
  it("continues after the last row until the limit or the end", async () => {
    const paths = listOf(250);
    expect((await loadPages("/v1/batches", 200, 100)).data.at(-1)).toEqual({ id: "199" });
    const { data, more } = await loadPages<{ id: string }>("/v1/batches", 300, 100);
    expect(data.map((each) => each.id)).toEqual(Array.from({ length: 250 }, (_, place) => String(place)));
    expect(more).toBe(false);
    expect(paths.at(-1)).toBe("/v1/batches?limit=100&after=199");
  });
  it("names its cursor", async () => {
    const paths = listOf(3);
    await loadPages("/v1/queue/dead", 4, 2, "before");
    expect(paths).toEqual(["/v1/queue/dead?limit=2", "/v1/queue/dead?limit=2&before=1"]);
  });
});
