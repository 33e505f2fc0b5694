// Parameters of the requests, each with what it does.
import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";
import { params, setParams } from "../state/route";
import { change, settings } from "./session";
import { defaults, EFFORTS, FORMATS, NUMBER_NAMES, type NumberName, NUMBERS, type Settings, TOOL_CHOICES } from "./settings";
import { parsed } from "./validity";

const TOOL_EXAMPLE = JSON.stringify(
  [
    {
      type: "function",
      function: {
        name: "get_weather",
        description: "Weather of a city",
        parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
      },
    },
  ],
  null,
  2,
);
const SCHEMA_EXAMPLE = JSON.stringify(
  {
    type: "object",
    properties: { name: { type: "string" }, age: { type: "integer" } },
    required: ["name", "age"],
    additionalProperties: false,
  },
  null,
  2,
);

export function Parameters() {
  const value = settings.value;
  return (
    <aside class="parameters" aria-label="Parameters">
      <Group title="Sampling">
        <div class="pairs">
          {NUMBER_NAMES.map((name) => (
            <NumberField key={name} name={name} />
          ))}
        </div>
        <Field label="Stop sequences" help="One a line; generation ends before any of them.">
          <textarea rows={2} value={value.stop} onInput={(event) => change({ stop: event.currentTarget.value })} />
        </Field>
        <Field label="Reasoning effort" help="For models whose chat template knows it.">
          <Select value={value.effort} options={EFFORTS} choose={(effort) => change({ effort })} />
        </Field>
      </Group>
      <Group title="Output">
        <Check label="Log-probabilities" checked={value.logprobs} set={(logprobs) => change({ logprobs })} />
        <Check label="Render Markdown" checked={!params.value.has("plain")} set={(on) => setParams({ plain: on ? "" : "1" })} />
        <Field label="Format" help="Structured output is enforced token by token.">
          <select value={value.format} onChange={(event) => change({ format: event.currentTarget.value as Settings["format"] })}>
            {Object.entries(FORMATS).map(([name, label]) => (
              <option key={name} value={name}>
                {label}
              </option>
            ))}
          </select>
        </Field>
        {value.format === "json_schema" && <JsonField label="JSON schema" name="schema" example={SCHEMA_EXAMPLE} />}
      </Group>
      <Group title="Tools">
        <JsonField label="Tools" name="tools" example={TOOL_EXAMPLE} />
        <Field label="Tool choice" help="Whether the model may, must or must not call a tool.">
          <Select value={value.toolChoice} options={TOOL_CHOICES} choose={(toolChoice) => change({ toolChoice })} />
        </Field>
      </Group>
      <button type="button" onClick={() => change(defaults())}>
        Reset parameters
      </button>
    </aside>
  );
}

function Group({ title, children }: { title: string; children: ComponentChildren }) {
  return (
    <fieldset>
      <legend>{title}</legend>
      {children}
    </fieldset>
  );
}

function Field({ label, help, children }: { label: string; help: string; children: ComponentChildren }) {
  return (
    <label title={help}>
      {label}
      {children}
    </label>
  );
}

function NumberField({ name }: { name: NumberName }) {
  const { label, least, most, step, help } = NUMBERS[name];
  const value = settings.value.numbers[name];
  const text = useSignal("");
  const valid = useSignal(true);
  // What is typed stays, "0.50" for example, as long as it means the value.
  useEffect(() => {
    if (valid.value && numberOf(text.value) !== value) text.value = String(value ?? "");
  }, [value]);
  const type = (field: HTMLInputElement) => {
    text.value = field.value;
    valid.value = field.validity.valid;
    if (!valid.value) return;
    const { [name]: _, ...others } = settings.value.numbers;
    change({ numbers: field.value === "" ? others : { ...others, [name]: Number(field.value) } });
  };
  return (
    <Field label={label} help={help}>
      <input
        type="number"
        min={least}
        max={most}
        step={step}
        placeholder="default"
        aria-invalid={!valid.value}
        value={text.value}
        onInput={(event) => type(event.currentTarget)}
        onBlur={(event) => event.currentTarget.reportValidity()}
      />
    </Field>
  );
}

function numberOf(text: string): number | undefined {
  return text === "" ? undefined : Number(text);
}

function Select({ value, options, choose }: { value: string; options: string[]; choose: (text: string) => void }) {
  return (
    <select value={value} onChange={(event) => choose(event.currentTarget.value)}>
      <option value="">default</option>
      {options.map((each) => (
        <option key={each}>{each}</option>
      ))}
    </select>
  );
}

function Check({ label, checked, set }: { label: string; checked: boolean; set: (on: boolean) => void }) {
  return (
    <label class="check">
      <input type="checkbox" checked={checked} onChange={(event) => set(event.currentTarget.checked)} />
      {label}
    </label>
  );
}

function JsonField({ label, name, example }: { label: string; name: "schema" | "tools"; example: string }) {
  const text = settings.value[name];
  const bad = text.trim() !== "" && parsed(text) === undefined;
  return (
    <>
      <label>
        {label}
        <textarea
          class="mono"
          rows={6}
          spellcheck={false}
          aria-invalid={bad}
          placeholder="JSON"
          value={text}
          onInput={(event) => change({ [name]: event.currentTarget.value })}
        />
      </label>
      {bad && <p class="error small">Not valid JSON.</p>}
      {!text && (
        <button type="button" class="small" onClick={() => change({ [name]: example })}>
          Insert an example
        </button>
      )}
    </>
  );
}
