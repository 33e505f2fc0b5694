// Stored responses: list, one with its input and output, continue in the playground, delete.
import { useSignal } from "@preact/signals";
import { age, short } from "../parts/format";
import { Content } from "../parts/loaded";
import { Empty } from "../parts/states";
import { type ColumnOf, Table } from "../parts/table";
import { call, type ResponseSummary } from "../state/api";
import { now } from "../state/live";
import { useLoaded } from "../state/load";
import { loadNames, nameOf } from "../state/names";
import { link, params, setParams } from "../state/route";
import { Detail, Status } from "./detail";
import "./style.css";

const POLL_MS = 5000;
const PAGE = 50;

export default function Responses() {
  const id = params.value.get("response");
  if (id) return <Detail key={id} id={id} />;
  return (
    <>
      <div class="row title">
        <h1>Responses</h1>
      </div>
      <List />
    </>
  );
}

interface Found {
  responses: ResponseSummary[];
  more: boolean;
}

async function load(pages: number): Promise<Found> {
  const responses: ResponseSummary[] = [];
  let more = true;
  for (let page = 0; page < pages && more; page++) {
    const after = responses.length ? `&after=${responses.at(-1)!.id}` : "";
    const found = await call<{ data: ResponseSummary[]; has_more: boolean }>("GET", `/v1/responses?limit=${PAGE}${after}`);
    responses.push(...found.data);
    more = found.has_more;
  }
  return { responses, more };
}

function List() {
  const pages = useSignal(1);
  useLoaded(loadNames);
  const loaded = useLoaded(() => load(pages.value), [pages.value], POLL_MS);
  const text = params.value.get("text") ?? "";
  const words = text.toLowerCase().split(/\s+/);
  return (
    <Content of={loaded} name="responses">
      {({ responses, more }) => {
        if (!responses.length) return <None />;
        const shown = responses.filter((each) => {
          const whole = [each.id, each.model, each.status, each.input, each.output, nameOf(each.owner)].join(" ").toLowerCase();
          return words.every((word) => whole.includes(word));
        });
        return (
          <>
            <Table
              label="Responses"
              columns={COLUMNS}
              rows={shown}
              id={(row) => row.id}
              sort={5}
              down
              tools={<input type="search" aria-label="Filter by text, model, status or owner" placeholder="Text, model, status or owner" value={text} onInput={(event) => setParams({ text: event.currentTarget.value })} />}
            />
            {!shown.length && <p class="muted">No response matches the filter.</p>}
            {more && (
              <button type="button" onClick={() => (pages.value += 1)}>
                Older responses
              </button>
            )}
          </>
        );
      }}
    </Content>
  );
}

const COLUMNS: ColumnOf<ResponseSummary>[] = [
  {
    name: "Input",
    value: (row) => row.input,
    show: (row) => (
      <a class="beginning" dir="auto" href={link("responses", { response: row.id })}>
        {row.input || row.id}
      </a>
    ),
  },
  { name: "Output", value: (row) => row.output, show: (row) => <span class="beginning" dir="auto">{row.output || "–"}</span> },
  { name: "Model", value: (row) => row.model },
  { name: "Status", value: (row) => row.status, show: (row) => <Status status={row.status} /> },
  { name: "Tokens", value: (row) => Number(row.usage?.["total_tokens"] ?? 0), show: (row) => short(Number(row.usage?.["total_tokens"] ?? 0)), number: true },
  { name: "Created", value: (row) => row.created_at, show: (row) => `${age(now.value - row.created_at * 1000)} ago` },
  { name: "Owner", value: (row) => nameOf(row.owner) },
];

function None() {
  return (
    <Empty icon="chat" title="No stored responses">
      <p>Responses are stored unless a request sets store to false. They can be read again, continued and deleted. With the openai package:</p>
      <pre tabIndex={0}>{`client.responses.create(\n    model="demo",\n    input="Hello",\n)`}</pre>
    </Empty>
  );
}
