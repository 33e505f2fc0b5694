// Waiting and running requests by model, owner and priority, groups with their progress, and workers.
import { useSignal } from "@preact/signals";
import { confirmed } from "../parts/confirm";
import { age, count, short } from "../parts/format";
import { Content } from "../parts/loaded";
import { Progress } from "../parts/progress";
import { Stat } from "../parts/stat";
import { Empty, Problem } from "../parts/states";
import { type ColumnOf, Table } from "../parts/table";
import { call, type Group, type QueueSummary, type Worker } from "../state/api";
import { now, stale } from "../state/live";
import { useLoaded } from "../state/load";
import { loadNames, nameOf } from "../state/names";
import { Rates } from "./rates";

const POLL_MS = 2000;

interface Data {
  summary: QueueSummary;
  groups: Group[];
  workers: Worker[];
}

export function Overview() {
  const problem = useSignal("");
  useLoaded(loadNames);
  const loaded = useLoaded(load, [], POLL_MS);
  const cancel = async (group: Group) => {
    const text = `Its ${count(group.unfinished, "unfinished request")} will not run. Results that exist stay.`;
    if (!(await confirmed(`Cancel ${group.id}?`, text, "Cancel the group"))) return;
    problem.value = "";
    try {
      await call("POST", `/v1/queue/groups/${group.id}/cancel`);
    } catch (error) {
      problem.value = (error as Error).message;
    }
    await loaded.reload();
  };
  return (
    <Content of={loaded} name="the queue">
      {({ summary, groups, workers }) => (
        <>
          <Figures summary={summary} />
          <Problem text={problem.value} />
          {groups.length === 0 ? (
            <Nothing />
          ) : (
            <>
              <Rates summary={summary} />
              <Lots summary={summary} />
              <Groups groups={groups} cancel={cancel} />
            </>
          )}
          {workers.length > 0 && <Workers workers={workers} />}
        </>
      )}
    </Content>
  );
}

async function load(): Promise<Data> {
  const [summary, groups, workers] = await Promise.all([
    call<QueueSummary>("GET", "/v1/queue"),
    call<{ data: Group[] }>("GET", "/v1/queue/groups?limit=200"),
    call<{ data: Worker[] }>("GET", "/v1/queue/workers"),
  ]);
  return { summary, groups: groups.data, workers: workers.data };
}

function Figures({ summary }: { summary: QueueSummary }) {
  const { rates, workers, dead } = summary;
  return (
    <div class="stats">
      <Stat name="Waiting" value={short(number(summary, (state) => state !== "leased"))} unit="requests" />
      <Stat name="Running" value={short(number(summary, (state) => state === "leased"))} unit="requests" />
      <Stat name="Answered" value={rates.requests_per_second.toFixed(1)} unit="requests/s" />
      <Stat name="Output" value={short(rates.output_tokens_per_second)} unit="tokens/s" />
      <Stat name="Dead letters" value={short(dead)} unit="requests" tone={dead ? "warn" : ""} />
      <Stat name="Workers" value={String(workers)} unit="active" />
    </div>
  );
}

function number(summary: QueueSummary, counted: (state: string) => boolean): number {
  return summary.waiting.filter((each) => counted(each.state)).reduce((sum, each) => sum + each.number, 0);
}

function Nothing() {
  return (
    <Empty icon="queue" title="The queue is empty">
      <p>Requests of the queue survive restarts of every part. Send a file of prompts:</p>
      <pre>rondo generate FILE.jsonl</pre>
      <p>Batches of OpenAI's API are queued as well.</p>
    </Empty>
  );
}

interface Lot {
  model: string;
  owner: string;
  priority: number;
  waiting: number;
  running: number;
}

function Lots({ summary }: { summary: QueueSummary }) {
  const lots = new Map<string, Lot>();
  for (const { model, owner, priority, state, number } of summary.waiting) {
    const id = JSON.stringify([model, owner, priority]);
    const lot = lots.get(id) ?? { model, owner: nameOf(owner), priority, waiting: 0, running: 0 };
    lot[state === "leased" ? "running" : "waiting"] += number;
    lots.set(id, lot);
  }
  if (!lots.size) return <p class="muted">No request waits or runs.</p>;
  return (
    <Table
      label="Waiting and running"
      columns={LOTS}
      rows={[...lots.values()]}
      id={(row) => JSON.stringify([row.model, row.owner, row.priority])}
      sort={3}
      down
      tools={<h2>Waiting and running</h2>}
    />
  );
}

function Groups({ groups, cancel }: { groups: Group[]; cancel: (group: Group) => Promise<void> }) {
  const columns = groupColumns(cancel);
  return <Table label="Groups" columns={columns} rows={groups} id={(row) => row.id} sort={3} down tools={<h2>Groups of requests</h2>} />;
}

function Workers({ workers }: { workers: Worker[] }) {
  return <Table label="Workers" columns={WORKERS} rows={workers} id={(row) => row.name} tools={<h2>Workers</h2>} />;
}

const LOTS: ColumnOf<Lot>[] = [
  { name: "Model", value: (row) => row.model },
  { name: "Owner", value: (row) => row.owner },
  { name: "Priority", value: (row) => row.priority, number: true },
  { name: "Waiting", value: (row) => row.waiting, number: true },
  { name: "Running", value: (row) => row.running, number: true },
];

const WORKERS: ColumnOf<Worker>[] = [
  { name: "Name", value: (row) => row.name },
  { name: "Models", value: (row) => row.models.join(", ") },
  { name: "Holds", value: (row) => row.held, number: true },
  { name: "Results", value: (row) => row.results, number: true },
  { name: "Latest call", value: (row) => -row.seen, show: (row) => `${age(now.value - row.seen * 1000)} ago`, number: true },
];

function groupColumns(cancel: (group: Group) => Promise<void>): ColumnOf<Group>[] {
  return [
    { name: "Group", value: (row) => row.id, show: (row) => <code>{row.id}</code> },
    { name: "Owner", value: (row) => nameOf(row.owner) },
    {
      name: "Progress",
      value: (row) => row.total - row.unfinished,
      show: (row) => <Progress label={`Progress of ${row.id}`} done={row.total - row.unfinished} total={row.total} />,
    },
    { name: "Created", value: (row) => row.created, show: (row) => `${age(now.value - row.created * 1000)} ago` },
    { name: "State", value: stateOf, show: (row) => <span class="chip">{stateOf(row)}</span> },
    {
      name: "Actions",
      value: () => "",
      actions: true,
      show: (row) =>
        row.ended === null && (
          <button type="button" disabled={stale.value} aria-label={`Cancel ${row.id}`} onClick={() => void cancel(row)}>
            Cancel
          </button>
        ),
    },
  ];
}

function stateOf(group: Group): string {
  if (group.ended !== null) return "ended";
  return group.sealed ? "running" : "open";
}
