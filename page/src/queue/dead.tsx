// Dead letters: requests that failed for good, with their reasons.
import { useSignal } from "@preact/signals";
import { count } from "../parts/format";
import { Icon } from "../parts/icon";
import { Content } from "../parts/loaded";
import { Empty, Problem } from "../parts/states";
import { type ColumnOf, Table } from "../parts/table";
import { call, type DeadLetter } from "../state/api";
import { stale } from "../state/live";
import { useLoaded } from "../state/load";
import { loadPages } from "../state/pages";

const PAGE = 200;

export function DeadLetters() {
  const limit = useSignal(PAGE);
  const problem = useSignal("");
  const loaded = useLoaded(() => loadPages<DeadLetter>("/v1/queue/dead", limit.value, PAGE, "before"), [limit.value]);
  const retry = async (paths: string[]) => {
    problem.value = "";
    try {
      for (const path of paths) await call("POST", path);
    } catch (error) {
      problem.value = (error as Error).message;
    }
    await loaded.reload();
  };
  return (
    <Content of={loaded} name="dead letters">
      {({ data: letters, more }) =>
        letters.length === 0 ? (
          <Empty icon="check" title="No dead letters">
            <p>A request is listed here after its last attempt failed, or when an engine refused it.</p>
          </Empty>
        ) : (
          <>
            <Problem text={problem.value} />
            <Reasons letters={letters} retry={(some) => void retry(some.map((each) => `/v1/queue/requests/${each.id}/retry`))} />
            <Table
              label="Dead letters"
              columns={columns((letter) => void retry([`/v1/queue/requests/${letter.id}/retry`]))}
              rows={letters}
              id={(row) => row.id}
              tools={
                <button type="button" disabled={stale.value} onClick={() => void retry(groupsOf(letters).map((group) => `/v1/queue/groups/${group}/retry`))}>
                  <Icon name="again" /> Retry all of {count(groupsOf(letters).length, "group")}
                </button>
              }
            />
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

// A request's id is that of its group and its place there.
function groupsOf(letters: DeadLetter[]): string[] {
  return [...new Set(letters.map((each) => each.id.slice(0, each.id.lastIndexOf("_"))))];
}

const MOST_REASONS = 5;

// The most frequent reasons, each with a retry of its requests.
function Reasons({ letters, retry }: { letters: DeadLetter[]; retry: (letters: DeadLetter[]) => void }) {
  const found = byReason(letters);
  if (found.length < 2) return null;
  return (
    <section class="card reasons" aria-label="Reasons">
      <h2>Reasons</h2>
      <ul>
        {found.slice(0, MOST_REASONS).map(([reason, own]) => (
          <li key={reason} class="row wrap">
            <strong>{own.length}</strong>
            <span class="reason">{reason}</span>
            <span class="space" />
            <button type="button" disabled={stale.value} aria-label={`Retry the ${count(own.length, "request")} with the reason ${reason}`} onClick={() => retry(own)}>
              Retry {count(own.length, "request")}
            </button>
          </li>
        ))}
      </ul>
    </section>
  );
}

function byReason(letters: DeadLetter[]): [string, DeadLetter[]][] {
  const found = new Map<string, DeadLetter[]>();
  for (const each of letters) found.set(reasonOf(each), [...(found.get(reasonOf(each)) ?? []), each]);
  return [...found].sort(([, one], [, other]) => other.length - one.length);
}

// The message of an engine's refusal, or the reason as it is.
function reasonOf(letter: DeadLetter): string {
  try {
    return JSON.parse(letter.reason).error.message;
  } catch {
    return letter.reason;
  }
}

function columns(retry: (letter: DeadLetter) => void): ColumnOf<DeadLetter>[] {
  return [
    { name: "Request", value: (row) => row.id, show: (row) => <code>{row.id}</code> },
    { name: "Model", value: (row) => row.model },
    { name: "Reason", value: reasonOf, show: (row) => <span class="reason">{reasonOf(row)}</span> },
    { name: "Status", value: (row) => row.status ?? "", number: true },
    { name: "Attempts", value: (row) => row.attempts, number: true },
    { name: "Worker", value: (row) => row.worker ?? "none" },
    {
      name: "Actions",
      value: () => "",
      actions: true,
      show: (row) => (
        <button type="button" disabled={stale.value} aria-label={`Retry ${row.id}`} onClick={() => retry(row)}>
          Retry
        </button>
      ),
    },
  ];
}
