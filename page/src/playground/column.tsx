// A conversation with one model.
import { useEffect, useRef } from "preact/hooks";
import { Icon } from "../parts/icon";
import { models } from "../state/live";
import type { Chat } from "./chat";
import { draft } from "./composer";
import { Message } from "./message";
import { chats, removeChat, useModels } from "./session";

const NEAR_END = 40;
const EXAMPLES = [
  "Explain gradient accumulation in two sentences.",
  "Write a Python function that reverses a linked list.",
  "List three rivers and their lengths as a table.",
];

export function Column({ chat, place }: { chat: Chat; place: number }) {
  const box = useRef<HTMLDivElement>(null);
  const following = useRef(true);
  const turns = chat.turns.value;
  useEffect(() => {
    if (following.current && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [turns]);
  const noteScroll = () => {
    if (!box.current) return; // an event that was queued when the view was left
    const { scrollTop, scrollHeight, clientHeight } = box.current;
    following.current = scrollHeight - scrollTop - clientHeight < NEAR_END;
  };
  return (
    <section class="column" aria-label={`Conversation ${place + 1}, with ${chat.model.value}`}>
      <div class="row head">
        <ModelSelect chat={chat} place={place} />
        {chats.value.length > 1 && (
          <button type="button" class="quiet" aria-label={`Remove ${chat.model.value} from the comparison`} title="Remove" onClick={() => removeChat(place)}>
            <Icon name="close" />
          </button>
        )}
      </div>
      <div class="turns" ref={box} role="log" tabIndex={0} aria-label={`Messages of ${chat.model.value}`} aria-busy={chat.busy.value} onScroll={noteScroll}>
        <div class="measure">
          {turns.length === 0 && (place === 0 ? <Start /> : <p class="muted">The messages below go to this model, too.</p>)}
          {turns.map((turn, at) => (
            <Message key={at} chat={chat} place={at} turn={turn} />
          ))}
        </div>
      </div>
    </section>
  );
}

function Start() {
  return (
    <div class="start">
      <h2>Try a model</h2>
      <p class="muted">Write a message below, or begin with one of these.</p>
      {EXAMPLES.map((text) => (
        <button key={text} type="button" onClick={() => (draft.value = text)}>
          {text}
        </button>
      ))}
    </div>
  );
}

function ModelSelect({ chat, place }: { chat: Chat; place: number }) {
  const known = models.value ?? [];
  const model = chat.model.value;
  const choose = (name: string) => useModels(chats.value.map((each, at) => (at === place ? name : each.model.value)));
  return (
    <select aria-label={place ? `Model ${place + 1}` : "Model"} value={model} onChange={(event) => choose(event.currentTarget.value)}>
      {!known.includes(model) && <option value={model}>{model} (not ready)</option>}
      {known.map((id) => (
        <option key={id}>{id}</option>
      ))}
    </select>
  );
}
