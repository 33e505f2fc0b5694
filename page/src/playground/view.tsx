// Playground: up to three models on the same messages.
import { useSignal } from "@preact/signals";
import { Icon } from "../parts/icon";
import { Empty, NoConnection, Skeleton } from "../parts/states";
import { connected, failure, models } from "../state/live";
import { params, setParams } from "../state/route";
import { Column } from "./column";
import { Composer } from "./composer";
import { Export } from "./export";
import { Parameters } from "./parameters";
import { addChat, change, chats, MOST_CHATS, settings } from "./session";
import { changed } from "./settings";
import "./style.css";

export default function Playground() {
  return (
    <>
      <h1 class="hidden">Playground</h1>
      <Content />
    </>
  );
}

function Content() {
  const exporting = useSignal(false);
  if (models.value === null) return failure.value && !connected.value ? <NoConnection /> : <Skeleton heights={["bar", "fill", "bar"]} />;
  if (models.value.length === 0 && !chats.value.some((chat) => chat.turns.value.length)) return <NoModel />;
  const open = params.value.has("panel");
  const count = changed(settings.value);
  return (
    <div class="playground">
      <div class="row toolbar">
        <SystemPrompt />
        {chats.value.length < MOST_CHATS && (
          <button type="button" onClick={addChat} title="Another model on the same messages">
            <Icon name="plus" /> <span class="label">Compare</span>
          </button>
        )}
        <button type="button" aria-expanded={open} onClick={() => setParams({ panel: open ? "" : "1" })}>
          <Icon name="sliders" /> <span class="label">Parameters</span>
          {count > 0 && <span class="badge" title={`${count} differ from the defaults`}>{count}</span>}
        </button>
        <button type="button" onClick={() => (exporting.value = true)}>
          <Icon name="share" /> <span class="label">Export</span>
        </button>
        <button type="button" disabled={!chats.value.some((chat) => chat.turns.value.length)} onClick={() => chats.value.forEach((chat) => chat.clear())}>
          <Icon name="trash" /> <span class="label">Clear</span>
        </button>
      </div>
      <div class={open ? "bench open" : "bench"}>
        <div class={`chats n${chats.value.length}`}>
          {chats.value.map((chat, place) => (
            <Column key={place} chat={chat} place={place} />
          ))}
        </div>
        {open && <Parameters />}
      </div>
      <Composer />
      {exporting.value && <Export close={() => (exporting.value = false)} />}
    </div>
  );
}

function SystemPrompt() {
  return (
    <textarea
      class="system"
      rows={1}
      dir="auto"
      aria-label="System prompt"
      placeholder="System prompt"
      value={settings.value.system}
      onInput={(event) => change({ system: event.currentTarget.value })}
    />
  );
}

function NoModel() {
  return (
    <Empty icon="play" title="No model is ready">
      <p>A model appears here as soon as an engine serves it. Start one:</p>
      <pre>rondo up MODEL</pre>
      <p>
        An engine that is loading its weights is listed under <a href="#/engines">Engines</a>.
      </p>
    </Empty>
  );
}
