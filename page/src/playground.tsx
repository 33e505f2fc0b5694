// Playground: one or two models, streaming, parameters, log-probabilities, export.
import { type Signal, signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { key } from "./api";
import { asCurl, asPython, Chat, DEFAULTS, request, type Settings, type Token, type Turn } from "./chat";
import { failure, models } from "./live";
import { params, setParam } from "./route";

const settings = signal<Settings>(DEFAULTS);
const first = new Chat(signal(params.value.get("model") ?? ""));
const second = new Chat(signal(params.value.get("compare") ?? ""));
const comparing = signal(params.value.has("compare"));
const exporting = signal("");
const draft = signal("");

export function Playground() {
  useEffect(chooseModels, [models.value]);
  if (models.value === null && failure.value) return <Unreachable />;
  if (models.value === null) return <Skeleton />;
  if (models.value.length === 0) return <Empty />;
  const chats = comparing.value ? [first, second] : [first];
  return (
    <div class="playground">
      <h1 class="hidden">Playground</h1>
      <Parameters />
      <div class="chats">
        {chats.map((chat, place) => (
          <Column key={place} chat={chat} name={place ? "compare" : "model"} />
        ))}
      </div>
      <Composer chats={chats} />
      {exporting.value && <Export chat={first} />}
    </div>
  );
}

function chooseModels(): void {
  const known = models.value ?? [];
  for (const chat of [first, second]) {
    if (!known.includes(chat.model.value)) chat.model.value = known[chat === first ? 0 : known.length - 1] ?? "";
  }
}

function Unreachable() {
  return (
    <div class="card narrow" role="alert">
      <h1>No connection</h1>
      <p>{failure.value}</p>
      <p class="muted">The page tries again every two seconds.</p>
    </div>
  );
}

function Empty() {
  return (
    <div class="card narrow">
      <h1>No model is ready</h1>
      <p>A model appears here as soon as an engine serves it.</p>
      <p>
        Start one with <code>rondo up MODEL</code>, or look at the <a href="#/engines">engines</a>.
      </p>
    </div>
  );
}

function Skeleton() {
  return (
    <div class="playground" aria-busy="true" aria-label="Loading">
      <div class="skeleton bar" />
      <div class="skeleton tall" />
      <div class="skeleton bar" />
    </div>
  );
}

function Parameters() {
  const change = (name: keyof Settings, value: unknown) =>
    (settings.value = { ...settings.value, [name]: value });
  const number = (name: "temperature" | "top_p" | "max_tokens", label: string, step: string, most: string) => (
    <label>
      {label}
      <input
        type="number"
        min="0"
        max={most}
        step={step}
        value={settings.value[name]}
        onChange={(event) => change(name, Number(event.currentTarget.value))}
      />
    </label>
  );
  const toggle = (name: "logprobs" | "json", label: string) => (
    <label class="check">
      <input
        type="checkbox"
        checked={settings.value[name]}
        onChange={(event) => change(name, event.currentTarget.checked)}
      />
      {label}
    </label>
  );
  return (
    <details class="parameters">
      <summary>Parameters and system prompt</summary>
      <div class="row wrap">
      <label class="wide">
        System prompt
        <textarea
          rows={2}
          value={settings.value.system}
          onInput={(event) => change("system", event.currentTarget.value)}
        />
      </label>
      {number("temperature", "Temperature", "0.1", "2")}
      {number("top_p", "Top p", "0.05", "1")}
      {number("max_tokens", "Most tokens", "1", "1000000")}
      {toggle("logprobs", "Log-probabilities")}
      {toggle("json", "JSON output")}
      </div>
    </details>
  );
}

function Column({ chat, name }: { chat: Chat; name: string }) {
  const end = useRef<HTMLDivElement>(null);
  useEffect(() => end.current?.scrollIntoView({ block: "nearest" }), [chat.turns.value]);
  return (
    <section class="column" aria-label={`Conversation with ${chat.model.value}`}>
      <div class="row">
        <ModelSelect model={chat.model} name={name} />
        {name === "model" && (
          <button type="button" onClick={toggleCompare}>
            {comparing.value ? "One model" : "+ compare"}
          </button>
        )}
      </div>
      <div class="turns" aria-live="polite" aria-busy={chat.busy.value}>
        {chat.turns.value.length === 0 && (
          <p class="muted">Write a message below. The answer appears as it is generated.</p>
        )}
        {chat.turns.value.map((turn, place) => (
          <Message key={place} turn={turn} busy={chat.busy.value && place === chat.turns.value.length - 1} />
        ))}
        <div ref={end} />
      </div>
    </section>
  );
}

function ModelSelect({ model, name }: { model: Signal<string>; name: string }) {
  return (
    <select
      aria-label={name === "model" ? "Model" : "Model to compare with"}
      value={model.value}
      onChange={(event) => {
        model.value = event.currentTarget.value;
        setParam(name, model.value);
      }}
    >
      {(models.value ?? []).map((id) => (
        <option key={id}>{id}</option>
      ))}
    </select>
  );
}

function toggleCompare(): void {
  comparing.value = !comparing.value;
  setParam("compare", comparing.value ? second.model.value : "");
}

function Message({ turn, busy }: { turn: Turn; busy: boolean }) {
  const rate = turn.seconds ? turn.count / turn.seconds : 0;
  return (
    <article class={`turn ${turn.role}`}>
      <h2>{turn.role === "user" ? "you" : "model"}</h2>
      {turn.reasoning && (
        <details>
          <summary>Reasoning</summary>
          <p class="text muted">{turn.reasoning}</p>
        </details>
      )}
      {turn.tokens.length ? <Tokens tokens={turn.tokens} /> : <p class="text">{turn.content}</p>}
      {turn.tools.map((tool, place) => (
        <ToolCall key={place} name={tool.name} text={tool.arguments} />
      ))}
      {turn.error && (
        <p class="error" role="alert">
          {turn.error}
        </p>
      )}
      {turn.role === "assistant" && (
        <p class="muted small">
          {busy
            ? "generating"
            : `${turn.count} tokens, ${turn.seconds.toFixed(2)} s, ${rate.toFixed(1)} tok/s, ${turn.finish}`}
        </p>
      )}
    </article>
  );
}

function ToolCall({ name, text }: { name: string; text: string }) {
  let valid = true;
  try {
    JSON.parse(text);
  } catch {
    valid = false;
  }
  return (
    <pre class="tool">
      <span class={valid ? "good" : "error"}>{valid ? "valid JSON" : "not valid JSON yet"}</span> {name}({text})
    </pre>
  );
}

function Tokens({ tokens }: { tokens: Token[] }) {
  return (
    <p class="text tokens">
      {tokens.map((token, place) => (
        <span key={place} class={`token p${level(token.logprob)}`} title={describe(token)} tabIndex={0}>
          {token.text}
        </span>
      ))}
    </p>
  );
}

function level(logprob: number | null): number {
  return logprob === null ? 4 : Math.min(4, Math.floor(Math.exp(logprob) * 5));
}

function describe(token: Token): string {
  const others = token.others.map((each) => `${JSON.stringify(each.text)} ${percent(each.logprob)}`);
  return `${percent(token.logprob)}\n${others.join("\n")}`;
}

function percent(logprob: number | null): string {
  return logprob === null ? "unknown" : `${(Math.exp(logprob) * 100).toFixed(1)} %  (log ${logprob.toFixed(3)})`;
}

function Composer({ chats }: { chats: Chat[] }) {
  const busy = chats.some((chat) => chat.busy.value);
  const stop = () => chats.forEach((chat) => chat.stop());
  const say = () => {
    const text = draft.value.trim();
    if (!text || busy) return;
    draft.value = "";
    for (const chat of chats) void chat.say(text, settings.value);
  };
  return (
    <form
      class="composer"
      onSubmit={(event) => {
        event.preventDefault();
        say();
      }}
    >
      <textarea
        rows={2}
        aria-label="Message"
        placeholder="Message (Enter sends, Shift Enter is a new line)"
        value={draft.value}
        onInput={(event) => (draft.value = event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
            event.preventDefault();
            say();
          }
          if (event.key === "Escape") stop();
        }}
      />
      {busy ? (
        <button type="button" class="main" onClick={stop}>
          Stop
        </button>
      ) : (
        <button type="submit" class="main" disabled={!draft.value.trim()}>
          Send
        </button>
      )}
      <button type="button" onClick={() => chats.forEach((chat) => chat.clear())}>
        Clear
      </button>
      <button type="button" onClick={() => (exporting.value = exporting.value ? "" : "curl")}>
        Export
      </button>
    </form>
  );
}

function Export({ chat }: { chat: Chat }) {
  const body = request(chat.model.value, chat.turns.value, settings.value);
  const text =
    exporting.value === "curl"
      ? asCurl(location.origin, body, key.value !== "")
      : asPython(location.origin, body);
  return (
    <section class="card" aria-label="Export">
      <div class="row">
        {["curl", "python"].map((kind) => (
          <button
            key={kind}
            type="button"
            aria-pressed={exporting.value === kind}
            onClick={() => (exporting.value = kind)}
          >
            {kind}
          </button>
        ))}
        <button type="button" onClick={() => void navigator.clipboard?.writeText(text)}>
          Copy
        </button>
      </div>
      <pre>{text}</pre>
    </section>
  );
}
