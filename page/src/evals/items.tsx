// Graded items of one run, and of several runs side by side.
import { percent, significant } from "../parts/format";
import { Content } from "../parts/loaded";
import { Stat } from "../parts/stat";
import { type ColumnOf, Table } from "../parts/table";
import { call } from "../state/api";
import { useLoaded } from "../state/load";
import { link, params, setParams } from "../state/route";
import { all, type Graded, outputOf, type Run, running, score, titleOf, TONES } from "./eval";

const POLL_MS = 2000;
const MOST = 2000;
const SHOWN = ["", "pass", "fail", "error"];

interface Found {
  run: Run;
  items: Graded[];
  more: boolean;
}

async function load(id: string, run: string, status = ""): Promise<Found> {
  const path = `/v1/evals/${encodeURIComponent(id)}/runs/${encodeURIComponent(run)}`;
  const [own, items] = await Promise.all([call<Run>("GET", path), all<Graded>(`${path}/output_items${status ? `?status=${status}` : ""}`, MOST)]);
  return { run: own, items: items.data, more: items.more };
}

export function Items({ id, run }: { id: string; run: string }) {
  const status = params.value.get("status") ?? "";
  const loaded = useLoaded(() => load(id, run, status), [id, run, status], POLL_MS);
  const own = loaded.data?.run;
  return (
    <>
      <div class="row title">
        <h1>{own ? titleOf(own) : "Run"}</h1>
        {own && <span class={`chip ${TONES[own.status] ?? ""}`}>{own.status.replace("_", " ")}</span>}
        <a href={link("evals", { run: "", status: "" })}>All runs</a>
      </div>
      <Content of={loaded} name="the run">
        {({ run: found, items, more }) => (
          <>
            <Figures run={found} />
            <Table
              label="Graded items"
              columns={COLUMNS}
              rows={items}
              id={(row) => row.id}
              tools={
                <select aria-label="Result" value={status} onChange={(event) => setParams({ status: event.currentTarget.value })}>
                  {SHOWN.map((each) => (
                    <option key={each} value={each}>
                      {each || "all results"}
                    </option>
                  ))}
                </select>
              }
            />
            {!items.length && <p class="muted">{running(found) ? "No item is graded yet." : "No item has this result."}</p>}
            {more && <p class="muted">The first {MOST} items are shown.</p>}
          </>
        )}
      </Content>
    </>
  );
}

function Figures({ run }: { run: Run }) {
  const { passed, failed, errored, total } = run.result_counts;
  return (
    <div class="stats">
      <Stat name="Passed" value={score(run) === null ? "–" : percent(score(run)!)} unit={`${passed} of ${total}`} />
      <Stat name="Failed" value={String(failed)} unit="items" />
      <Stat name="Errors" value={String(errored)} unit="items" tone={errored ? "warn" : ""} />
      {run.per_testing_criteria_results.map((each) => (
        <Stat key={each.testing_criteria} name={each.testing_criteria} value={percent(each.passed / Math.max(1, each.passed + each.failed))} unit="passed" />
      ))}
    </div>
  );
}

const COLUMNS: ColumnOf<Graded>[] = [
  { name: "Item", value: (row) => row.datasource_item_id, number: true },
  { name: "Result", value: (row) => row.status, show: (row) => <Result item={row} /> },
  { name: "Score", value: (row) => row.results[0]?.score ?? -1, show: (row) => row.results.map((each) => significant(each.score)).join(", "), number: true },
  { name: "Data", value: (row) => JSON.stringify(row.datasource_item), show: (row) => <Fields item={row.datasource_item} /> },
  { name: "Answer", value: outputOf, show: (row) => <span class="cell">{outputOf(row) || "(empty)"}</span> },
];

function Result({ item }: { item: Graded }) {
  return <span class={`chip ${TONES[item.status] ?? ""}`}>{item.status}</span>;
}

function Fields({ item }: { item: Record<string, unknown> }) {
  return (
    <span class="cell">
      {Object.entries(item).map(([name, value]) => (
        <span key={name} class="pair">
          <span class="muted">{name}: </span>
          {typeof value === "string" ? value : JSON.stringify(value)}
        </span>
      ))}
    </span>
  );
}

interface Line {
  place: number;
  data: Record<string, unknown>;
  items: (Graded | undefined)[];
}

export function Compared({ id, runs }: { id: string; runs: string[] }) {
  const differing = params.value.has("differing");
  const loaded = useLoaded(() => Promise.all(runs.map((run) => load(id, run))), [id, runs.join(" ")]);
  return (
    <>
      <div class="row title">
        <h1>Comparison</h1>
        <a href={link("evals", { table: "" })}>All runs</a>
      </div>
      <Content of={loaded} name="the runs">
        {(found) => {
          const lines = linesOf(found).filter((line) => !differing || new Set(line.items.map((each) => each?.status)).size > 1);
          return (
            <>
              <div class="stats">
                {found.map(({ run }) => (
                  <Stat key={run.id} name={titleOf(run)} value={score(run) === null ? "–" : percent(score(run)!)} unit="passed" />
                ))}
              </div>
              <Table
                label="Items side by side"
                columns={comparison(found)}
                rows={lines}
                id={(row) => String(row.place)}
                tools={
                  <label class="check">
                    <input type="checkbox" checked={differing} onChange={(event) => setParams({ differing: event.currentTarget.checked ? "1" : "" })} />
                    Only items with different results
                  </label>
                }
              />
              {!lines.length && <p class="muted">{differing ? "All items have equal results." : "No item is graded yet."}</p>}
            </>
          );
        }}
      </Content>
    </>
  );
}

export function linesOf(found: Found[]): Line[] {
  const lines = new Map<number, Line>();
  found.forEach(({ items }, place) => {
    for (const item of items) {
      const line: Line = lines.get(item.datasource_item_id) ?? { place: item.datasource_item_id, data: item.datasource_item, items: [] };
      line.items[place] = item;
      lines.set(item.datasource_item_id, line);
    }
  });
  return [...lines.values()];
}

function comparison(found: Found[]): ColumnOf<Line>[] {
  return [
    { name: "Item", value: (row) => row.place, number: true },
    { name: "Data", value: (row) => JSON.stringify(row.data), show: (row) => <Fields item={row.data} /> },
    ...found.map(({ run }, place): ColumnOf<Line> => {
      const name = found.findIndex((each) => titleOf(each.run) === titleOf(run)) === place ? titleOf(run) : `${titleOf(run)} (${place + 1})`;
      return {
        name,
        value: (row) => row.items[place]?.status ?? "",
        show: (row) => {
          const item = row.items[place];
          return item ? (
            <>
              <Result item={item} /> <span class="cell">{outputOf(item)}</span>
            </>
          ) : (
            <span class="muted">–</span>
          );
        },
      };
    }),
  ];
}
