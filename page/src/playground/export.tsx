// A conversation as curl, Python, or a record of a data set.
import { useSignal } from "@preact/signals";
import { Copy, download } from "../parts/copy";
import { Dialog } from "../parts/dialog";
import { Tabs } from "../parts/tabs";
import { key } from "../state/api";
import { link } from "../state/route";
import type { Chat } from "./chat";
import { asBatchLine, asCurl, asPython, asRecord, type Body, request } from "./request";
import { chats, settings } from "./session";
import type { Turn } from "./turn";

const FORMS = {
  curl: { file: "request.sh", help: "The request of the latest response, for a shell.", write: (body: Body) => asCurl(location.origin, body, key.value !== "") },
  Python: { file: "request.py", help: "The request of the latest response, for the openai package.", write: (body: Body) => asPython(location.origin, body) },
  JSONL: { file: "conversation.jsonl", help: "The conversation as a line of a data set for fine-tuning. Corrected responses are included.", write: asRecord },
  Batch: { file: "batch.jsonl", help: "The request of the latest response as a line of a batch file.", write: asBatchLine },
} as const;
type Form = keyof typeof FORMS;

export function Export({ close }: { close: () => void }) {
  const form = useSignal<Form>("curl");
  const place = useSignal(0);
  const chat = chats.value[place.value] ?? chats.value[0]!;
  const { file, help } = FORMS[form.value];
  const text = written(chat, form.value);
  return (
    <Dialog title="Export" wide close={close}>
      {chats.value.length > 1 && (
        <label>
          Conversation
          <select value={place.value} onChange={(event) => (place.value = Number(event.currentTarget.value))}>
            {chats.value.map((each, at) => (
              <option key={at} value={at}>
                {each.model.value}
              </option>
            ))}
          </select>
        </label>
      )}
      <Tabs label="Format" names={Object.keys(FORMS)} chosen={form.value} choose={(name) => (form.value = name as Form)} />
      <p class="muted small">{help}</p>
      <pre class="export" tabIndex={0}>
        {text}
      </pre>
      <div class="row end">
        {form.value === "JSONL" && (
          <a href={link("jobs", { new: "sft", base: chat.model.value })} onClick={close}>
            Train on such records
          </a>
        )}
        {form.value === "Batch" && (
          <a href={link("queue", { tab: "Batches" })} onClick={close}>
            Batches
          </a>
        )}
        <span class="space" />
        <button type="button" onClick={() => download(file, `${text}\n`)}>
          Download
        </button>
        <Copy text={text} />
      </div>
    </Dialog>
  );
}

function written(chat: Chat, form: Form): string {
  const turns = chat.turns.value;
  try {
    return FORMS[form].write(request(chat.model.value, form === "JSONL" ? turns : asked(turns), settings.value));
  } catch (error) {
    return (error as Error).message;
  }
}

// The turns before the latest response.
function asked(turns: Turn[]): Turn[] {
  const last = turns.findLastIndex((turn) => turn.role === "assistant");
  return last === turns.length - 1 ? turns.slice(0, -1) : turns;
}
