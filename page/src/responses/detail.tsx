// One stored response: its input and output, and what can be done with it.
import { useSignal } from "@preact/signals";
import { announce } from "../parts/announce";
import { confirmed } from "../parts/confirm";
import { Copy } from "../parts/copy";
import { age, count } from "../parts/format";
import { Content } from "../parts/loaded";
import { Problem } from "../parts/states";
import { Stat } from "../parts/stat";
import { Markdown } from "../playground/markdown";
import { chats, change } from "../playground/session";
import { call } from "../state/api";
import { now, stale } from "../state/live";
import { useAttempt } from "../state/attempt";
import { useLoaded } from "../state/load";
import { go, link, view } from "../state/route";
import { conversation, inputItems, type Item, nameOf, type StoredResponse, textOf } from "./items";

const POLL_MS = 2000;
const FRAME_MS = 16;
const RUNNING = ["queued", "in_progress"];
const TONES: Record<string, string> = { completed: "good", failed: "bad", incomplete: "warn", cancelled: "warn" };

export function Status({ status }: { status: string }) {
  return <span class={`chip ${TONES[status] ?? ""}`}>{status.replaceAll("_", " ")}</span>;
}

interface Found {
  response: StoredResponse;
  input: Item[];
}

export function Detail({ id }: { id: string }) {
  const running = useSignal(true);
  const path = `/v1/responses/${encodeURIComponent(id)}`;
  const load = async (): Promise<Found> => {
    const [response, input] = await Promise.all([call<StoredResponse>("GET", path), inputItems(id)]);
    running.value = RUNNING.includes(response.status);
    return { response, input };
  };
  const loaded = useLoaded(load, [id, running.value], running.value ? POLL_MS : 0);
  const { problem, attempt } = useAttempt();
  const remove = async () => {
    if (!(await confirmed("Delete the response?", "Its input and output are deleted. Responses that continue it can no longer be continued.", "Delete the response"))) return;
    await attempt(async () => {
      await call("DELETE", path);
      announce("The response was deleted.");
      go("responses", { response: "" });
    });
  };
  const found = loaded.data?.response;
  return (
    <>
      <div class="row title">
        <h1>Response</h1>
        {found && <Status status={found.status} />}
        <a href={link("responses", { response: "" })}>All responses</a>
        <span class="space" />
        {found && (
          <span class="row actions wrap">
            <button type="button" class="main" disabled={stale.value || running.value} onClick={() => void attempt(() => resume(id))}>
              Continue in the playground
            </button>
            {running.value && found.background && (
              <button type="button" disabled={stale.value} onClick={() => void attempt(async () => (await call("POST", `${path}/cancel`), await loaded.reload()))}>
                Cancel
              </button>
            )}
            <button type="button" class="danger" disabled={stale.value} onClick={() => void remove()}>
              Delete
            </button>
          </span>
        )}
      </div>
      <Problem text={problem.value} />
      <Content of={loaded} name="the response">
        {({ response, input }) => <Shown response={response} input={input} />}
      </Content>
    </>
  );
}

// The conversation becomes that of the playground, which sends all of it with the next message.
async function resume(id: string): Promise<void> {
  const { turns, system, model } = await conversation(id);
  go("playground", { model });
  // The playground reads its models from the URL.
  while (view.value !== "playground") await new Promise((done) => setTimeout(done, FRAME_MS));
  if (system) change({ system });
  const [chat] = chats.value;
  if (!chat) throw new Error(`The model ${model} is not ready: start it with "rondo up ${model}", or choose another one.`);
  chat.clear();
  chat.turns.value = turns;
}

function Shown({ response, input }: Found) {
  return (
    <>
      <div class="stats">
        <Stat name="Model" value={response.model} unit="" />
        <Stat name="Input" value={count(response.usage?.input_tokens ?? 0, "token")} unit="" />
        <Stat name="Output" value={count(response.usage?.output_tokens ?? 0, "token")} unit="" />
        <Stat name="Created" value={age(now.value - response.created_at * 1000)} unit="ago" />
      </div>
      {response.previous_response_id && (
        <p>
          It continues <a href={link("responses", { response: response.previous_response_id })}>an earlier response</a>.
        </p>
      )}
      <Problem text={response.error?.message ?? ""} />
      <section class="items" aria-label="Input and output">
        {response.instructions && <One name="instructions" text={response.instructions} />}
        {input.map((item, place) => (
          <One key={item.id ?? place} name={nameOf(item)} text={textOf(item)} />
        ))}
        {response.output.map((item, place) => (
          <One key={item.id ?? `output ${place}`} name={nameOf(item)} text={textOf(item)} output={item.role === "assistant"} />
        ))}
      </section>
      <p class="row wrap small muted">
        <code class="wide">{response.id}</code>
        <Copy label="Copy id" text={response.id} quiet />
        <Copy label="Copy JSON" text={() => JSON.stringify({ ...response, input }, null, 2)} />
        {Object.entries(response.metadata ?? {}).map(([name, value]) => (
          <span key={name} class="chip">
            {name}: {value}
          </span>
        ))}
      </p>
    </>
  );
}

function One({ name, text, output }: { name: string; text: string; output?: boolean }) {
  return (
    <article class="card" aria-label={name}>
      <h2 class="muted small">{name}</h2>
      {output ? (
        <Markdown text={text} />
      ) : (
        <p class="text" dir="auto">
          {text || "(empty)"}
        </p>
      )}
    </article>
  );
}
