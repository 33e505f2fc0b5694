// One message of a conversation, with its actions and figures.
import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { Copy } from "../parts/copy";
import { count, seconds } from "../parts/format";
import { Icon } from "../parts/icon";
import { params } from "../state/route";
import { Call, Structured } from "./blocks";
import type { Chat } from "./chat";
import { Markdown } from "./markdown";
import { editEverywhere, settings } from "./session";
import { Tokens } from "./tokens";
import { rate, type Turn } from "./turn";

interface Props {
  chat: Chat;
  place: number;
  turn: Turn;
}

export function Message({ chat, place, turn }: Props) {
  const editing = useSignal(false);
  const busy = chat.busy.value && place === chat.turns.value.length - 1;
  const name = { user: "You", assistant: chat.model.value, tool: "Tool result" }[turn.role];
  return (
    <article class={`turn ${turn.role}`} aria-label={`Message of ${name}`}>
      <header class="row">
        <h2>{name}</h2>
        <span class="space" />
        {!busy && !editing.value && <Actions chat={chat} place={place} turn={turn} edit={() => (editing.value = true)} />}
      </header>
      {turn.reasoning && <Reasoning turn={turn} busy={busy} />}
      {editing.value ? (
        <Editor chat={chat} place={place} turn={turn} close={() => (editing.value = false)} />
      ) : (
        <Content turn={turn} busy={busy} />
      )}
      {turn.calls.map((call) => (
        <Call key={call.id} call={call} busy={busy} reply={unanswered(chat, call.id) ? (text) => void chat.returnResult(call.id, text, settings.value) : undefined} />
      ))}
      {turn.error && (
        <p class="error" role="alert">
          {turn.error}
        </p>
      )}
      {turn.role === "assistant" && <Figures turn={turn} busy={busy} />}
    </article>
  );
}

function Actions({ chat, place, turn, edit }: Props & { edit: () => void }) {
  const label = turn.role === "user" ? "Edit and send again" : "Correct";
  return (
    <>
      {turn.content && <Copy text={turn.content} label="Copy message" quiet />}
      <button type="button" class="quiet" aria-label={label} title={label} onClick={edit}>
        <Icon name="edit" />
      </button>
      {turn.role === "assistant" && (
        <button type="button" class="quiet" aria-label="Regenerate" title="Regenerate" onClick={() => void chat.again(place, settings.value)}>
          <Icon name="again" />
        </button>
      )}
    </>
  );
}

function unanswered(chat: Chat, callId: string): boolean {
  return !chat.turns.value.some((each) => each.role === "tool" && each.callId === callId);
}

function Content({ turn, busy }: { turn: Turn; busy: boolean }) {
  if (busy && !turn.content && !turn.reasoning && !turn.calls.length) return <p class="waiting muted">Waiting for the first token</p>;
  if (!turn.content) return null;
  if (turn.role === "assistant") {
    if (turn.tokens.length) return <Tokens tokens={turn.tokens} />;
    if (settings.value.format !== "text") return <Structured text={turn.content} busy={busy} />;
    if (!params.value.has("plain")) return <Markdown text={turn.content} />;
  }
  return (
    <p class="text" dir="auto">
      {turn.content}
    </p>
  );
}

function Reasoning({ turn, busy }: { turn: Turn; busy: boolean }) {
  const thinking = busy && !turn.content && !turn.calls.length;
  return (
    <details class="reasoning">
      <summary>{thinking ? "Reasoning, in progress" : `Reasoning, ${count(turn.reasoning.length, "character")}`}</summary>
      <p class="text muted" dir="auto">
        {turn.reasoning}
      </p>
    </details>
  );
}

const FINISHES: Record<string, string> = {
  stop: "complete",
  length: "cut off at max tokens",
  tool_calls: "tool call",
  stopped: "stopped",
  error: "failed",
};

function Figures({ turn, busy }: { turn: Turn; busy: boolean }) {
  const finish = FINISHES[turn.finish] ?? turn.finish;
  const parts = [
    `${rate(turn).toFixed(rate(turn) < 10 ? 1 : 0)} tok/s`,
    count(turn.count, "token"),
    `first after ${seconds(turn.firstSeconds)}`,
    `total ${seconds(turn.seconds)}`,
  ];
  return (
    <p class="figures">
      {busy ? (
        <span class="chip">generating</span>
      ) : (
        <span class={`chip ${{ length: "warn", error: "bad" }[turn.finish] ?? ""}`}>{finish}</span>
      )}
      {turn.count > 0 && parts.map((part, place) => <span key={place}>{part}</span>)}
    </p>
  );
}

function Editor({ chat, place, turn, close }: Props & { close: () => void }) {
  const text = useSignal(turn.content);
  const field = useRef<HTMLTextAreaElement>(null);
  useEffect(() => field.current?.focus(), []);
  const save = () => {
    close();
    editEverywhere(chat, place, text.value);
  };
  return (
    <form
      class="editor"
      onSubmit={(event) => (event.preventDefault(), save())}
      onKeyDown={(event) => {
        if (event.key === "Escape") close();
        if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) save();
      }}
    >
      <textarea
        ref={field}
        rows={4}
        dir="auto"
        aria-label="Edited message"
        value={text.value}
        onInput={(event) => (text.value = event.currentTarget.value)}
      />
      <div class="row end">
        <button type="button" onClick={close}>
          Cancel
        </button>
        <button type="submit" class="main">
          {turn.role === "user" ? "Send again" : "Save correction"}
        </button>
      </div>
    </form>
  );
}
