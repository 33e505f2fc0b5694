// Tool calls and structured output as blocks that show whether they are valid.
import { useRef } from "preact/hooks";
import { Copy } from "../parts/copy";
import { Icon } from "../parts/icon";
import { settings } from "./session";
import type { ToolCall } from "./turn";
import { judge, parsed, type Verdict } from "./validity";

export function Structured({ text, busy }: { text: string; busy: boolean }) {
  const { format, schema } = settings.value;
  return <JsonBlock title="Structured output" text={text} busy={busy} verdict={judge(text, format === "json_schema" ? parsed(schema) : undefined)} />;
}

interface CallProps {
  call: ToolCall;
  busy: boolean;
  // Present while the call has no result.
  reply?: (text: string) => void;
}

export function Call({ call, busy, reply }: CallProps) {
  const field = useRef<HTMLTextAreaElement>(null);
  const tools: { function?: { name?: string; parameters?: unknown } }[] = [parsed(settings.value.tools) ?? []].flat();
  const tool = tools.find((each) => each.function?.name === call.name);
  const verdict = judge(call.arguments || "{}", tool?.function?.parameters);
  if (!verdict.problem && !tool) verdict.problem = `no tool has the name ${call.name}`;
  return (
    <>
      <JsonBlock title={`Tool call: ${call.name}`} text={call.arguments} busy={busy} verdict={verdict} />
      {reply && !busy && (
        <form
          class="row result"
          onSubmit={(event) => {
            event.preventDefault();
            reply(field.current!.value);
          }}
        >
          <textarea ref={field} rows={1} required aria-label={`Result of ${call.name}`} placeholder="Result of the tool" />
          <button type="submit">Return result</button>
        </form>
      )}
    </>
  );
}

interface BlockProps {
  title: string;
  text: string;
  busy: boolean;
  verdict: Verdict;
}

function JsonBlock({ title, text, busy, verdict }: BlockProps) {
  const good = !verdict.problem;
  return (
    <div class="code json">
      <div class="row">
        <strong class="small">{title}</strong>
        <span class="space" />
        {!busy && (
          <span class={`chip ${good ? "good" : "bad"}`} title={verdict.problem}>
            <Icon name={good ? "check" : "warning"} /> {good ? "valid" : "invalid"}
          </span>
        )}
        <Copy text={text} label={`Copy ${title}`} quiet />
      </div>
      <pre tabIndex={0} dir="ltr">
        {good && !busy ? JSON.stringify(verdict.value, null, 2) : text}
      </pre>
      {!good && !busy && <p class="error small">{verdict.problem}</p>}
    </div>
  );
}
