// Requests and tokens by key, model and day.
import { short } from "../parts/format";
import { Content } from "../parts/loaded";
import { Stat } from "../parts/stat";
import { Empty } from "../parts/states";
import { type ColumnOf, Table } from "../parts/table";
import { call, type UsageRow } from "../state/api";
import { useLoaded } from "../state/load";
import { loadNames, nameOf } from "../state/names";
import { params, setParams } from "../state/route";
import { Bars } from "./bars";
import { daysBack, grouped, type Measure, MEASURES, sum } from "./totals";
import "./style.css";

const RANGES = ["7", "30", "90"];
const GROUPS = ["model", "key"] as const;

export default function Usage() {
  const days = chosen("days", RANGES, "30");
  const measure = chosen("measure", Object.keys(MEASURES), "output_tokens") as Measure;
  const group = chosen("by", GROUPS, "model") as (typeof GROUPS)[number];
  useLoaded(loadNames);
  const loaded = useLoaded(() => load(Number(days)), [days]);
  return (
    <>
      <div class="row title">
        <h1>Usage</h1>
        <span class="space" />
        <Choice label="Days" name="days" options={Object.fromEntries(RANGES.map((each) => [each, `${each} days`]))} value={days} />
        <Choice label="Measure" name="measure" options={MEASURES} value={measure} />
        <Choice label="Split by" name="by" options={{ model: "by model", key: "by key" }} value={group} />
      </div>
      <Content of={loaded} name="usage">
        {(rows) => <Totals rows={rows} days={Number(days)} measure={measure} group={group} />}
      </Content>
    </>
  );
}

interface Props {
  rows: UsageRow[];
  days: number;
  measure: Measure;
  group: (typeof GROUPS)[number];
}

function Totals({ rows, days, measure, group }: Props) {
  if (rows.length === 0) {
    return (
      <Empty icon="chart" title={`No requests in the last ${days} days`}>
        <p>
          Usage is counted for each key, model and day. Try a model in the <a href="#/playground">playground</a>.
        </p>
      </Empty>
    );
  }
  const found = rows.map((row) => ({ ...row, key: nameOf(row.key) }));
  return (
    <>
      <div class="stats">
        <Stat name="Requests" value={short(sum(found, "requests"))} unit={`in ${days} days`} />
        <Stat name="Input" value={short(sum(found, "input_tokens"))} unit="tokens" />
        <Stat name="Output" value={short(sum(found, "output_tokens"))} unit="tokens" />
      </div>
      <Bars days={daysBack(days)} groups={grouped(found, group, measure)} unit={MEASURES[measure].toLowerCase()} />
      <Table label="Usage" columns={columns} rows={found} id={(row) => `${row.day} ${row.key} ${row.model}`} down />
    </>
  );
}

function chosen(name: string, options: readonly string[], otherwise: string): string {
  const found = params.value.get(name) ?? otherwise;
  return options.includes(found) ? found : otherwise;
}

function Choice({ label, name, options, value }: { label: string; name: string; options: Record<string, string>; value: string }) {
  return (
    <select aria-label={label} value={value} onChange={(event) => setParams({ [name]: event.currentTarget.value })}>
      {Object.entries(options).map(([each, text]) => (
        <option key={each} value={each}>
          {text}
        </option>
      ))}
    </select>
  );
}

async function load(days: number): Promise<UsageRow[]> {
  return (await call<{ data: UsageRow[] }>("GET", `/v1/usage?since=${daysBack(days)[0]}`)).data;
}

const columns: ColumnOf<UsageRow>[] = [
  { name: "Day (UTC)", value: (row) => row.day },
  { name: "Key", value: (row) => row.key },
  { name: "Model", value: (row) => row.model },
  { name: "Requests", value: (row) => row.requests, number: true },
  { name: "Input tokens", value: (row) => row.input_tokens, number: true },
  { name: "Output tokens", value: (row) => row.output_tokens, number: true },
];
