// Batches of OpenAI's API: progress, results, cancellation.
import { useSignal } from "@preact/signals";
import { confirmed } from "../parts/confirm";
import { download } from "../parts/copy";
import { age, count, significant } from "../parts/format";
import { Content } from "../parts/loaded";
import { Progress } from "../parts/progress";
import { Empty, Problem } from "../parts/states";
import { type ColumnOf, Table } from "../parts/table";
import { type Batch, call, send } from "../state/api";
import { now, stale } from "../state/live";
import { useAttempt } from "../state/attempt";
import { useLoaded } from "../state/load";
import { loadNames, nameOf } from "../state/names";
import { loadPages } from "../state/pages";
import { link } from "../state/route";

const POLL_MS = 2000;
const PAGE = 100;
const TONES: Record<string, string> = { completed: "good", failed: "bad", expired: "warn" };
const RUNNING = ["validating", "in_progress"];

export function Batches() {
  const limit = useSignal(PAGE);
  const loaded = useLoaded(() => loadPages<Batch>("/v1/batches", limit.value, PAGE), [limit.value], POLL_MS);
  useLoaded(loadNames);
  const { problem, attempt } = useAttempt(loaded.reload);
  const cancel = async (batch: Batch) => {
    const { total, completed, failed } = batch.request_counts;
    const left = count((total ?? 0) - (completed ?? 0) - (failed ?? 0), "request");
    const text = `${left} will not run. Results until then are in its output file.`;
    if (await confirmed(`Cancel ${batch.id}?`, text, "Cancel the batch")) await attempt(() => call("POST", `/v1/batches/${batch.id}/cancel`));
  };
  const save = async (file: string) => {
    const response = await send("GET", `/v1/files/${file}/content`);
    download(`${file}.jsonl`, await response.text(), "application/jsonl");
  };
  return (
    <Content of={loaded} name="batches">
      {({ data: batches, more }) =>
        batches.length === 0 ? (
          <Empty icon="queue" title="No batches">
            <p>A batch is a file of requests to one endpoint. With the openai package:</p>
            <pre>{`client.batches.create(\n    input_file_id=file.id,\n    endpoint="/v1/chat/completions",\n    completion_window="24h",\n)`}</pre>
          </Empty>
        ) : (
          <>
            <Problem text={problem.value} />
            <Table label="Batches" columns={columns(cancel, (file) => void attempt(() => save(file)))} rows={batches} id={(row) => row.id} sort={6} down />
            {more && (
              <button type="button" onClick={() => (limit.value += PAGE)}>
                More
              </button>
            )}
          </>
        )
      }
    </Content>
  );
}

function columns(cancel: (batch: Batch) => void, save: (file: string) => void): ColumnOf<Batch>[] {
  return [
    { name: "Batch", value: (row) => row.id, show: (row) => <code>{row.id}</code> },
    { name: "Endpoint", value: (row) => row.endpoint },
    { name: "Model", value: (row) => row.model ?? "", show: (row) => row.model && <a href={link("playground", { model: row.model })}>{row.model}</a> },
    { name: "Status", value: (row) => row.status, show: (row) => <Status batch={row} /> },
    {
      name: "Progress",
      value: (row) => row.request_counts.completed ?? 0,
      show: (row) => {
        const { completed = 0, failed = 0, total = 0 } = row.request_counts;
        return (
          <>
            <Progress label={`Progress of ${row.id}`} done={completed} failed={failed} total={total} />
            <span class="muted small">{speed(row, now.value)}</span>
          </>
        );
      },
    },
    { name: "Owner", value: (row) => nameOf(row.owner) },
    { name: "Created", value: (row) => row.created_at, show: (row) => `${age(now.value - row.created_at * 1000)} ago` },
    {
      name: "Actions",
      value: () => "",
      actions: true,
      show: (row) => (
        <span class="row">
          {row.output_file_id && <SaveButton label="Results" batch={row} file={row.output_file_id} save={save} />}
          {row.error_file_id && <SaveButton label="Errors" batch={row} file={row.error_file_id} save={save} />}
          {RUNNING.includes(row.status) && (
            <button type="button" disabled={stale.value} aria-label={`Cancel ${row.id}`} onClick={() => cancel(row)}>
              Cancel
            </button>
          )}
        </span>
      ),
    },
  ];
}

// Requests a second since the batch began, and the time that is left at this rate.
function speed(batch: Batch, now: number): string {
  const { completed = 0, failed = 0, total = 0 } = batch.request_counts;
  const done = completed + failed;
  if (batch.in_progress_at === null || !done) return "";
  const end = batch.completed_at ?? batch.finalizing_at ?? now / 1000;
  const rate = done / Math.max(1, end - batch.in_progress_at);
  const left = batch.status === "in_progress" && done < total ? `, ${age(((total - done) / rate) * 1000)} left` : "";
  return `${significant(rate)} requests/s${left}`;
}

function SaveButton({ label, batch, file, save }: { label: string; batch: Batch; file: string; save: (file: string) => void }) {
  return (
    <button type="button" aria-label={`${label} of ${batch.id}`} onClick={() => save(file)}>
      {label}
    </button>
  );
}

function Status({ batch }: { batch: Batch }) {
  const first: { message?: string } | undefined = (batch.errors?.data as { message?: string }[] | undefined)?.[0];
  return (
    <>
      <span class={`chip ${TONES[batch.status] ?? ""}`}>{batch.status.replace("_", " ")}</span>
      {first?.message && <p class="error small reason">{first.message}</p>}
    </>
  );
}
