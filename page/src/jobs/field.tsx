// A setting of a job as a field, with its description and default.
import type { ComponentChildren } from "preact";
import type { Setting } from "../state/api";

interface Props {
  id: string;
  label: ComponentChildren;
  help: string;
  problem?: string;
  children: (attributes: { id: string; "aria-describedby": string; "aria-invalid": boolean }) => ComponentChildren;
}

export function Field({ id, label, help, problem, children }: Props) {
  return (
    <div class="field">
      <label for={id}>{label}</label>
      {children({ id, "aria-describedby": `${id}-help`, "aria-invalid": Boolean(problem) })}
      <p id={`${id}-help`} class="muted small">
        {problem && <span class="error">{problem} </span>}
        {help}
      </p>
    </div>
  );
}

interface SettingProps {
  setting: Setting;
  value: string;
  change: (text: string) => void;
  problem?: string;
}

export function SettingField({ setting, value, change, problem }: SettingProps) {
  return (
    <Field id={`settings.${setting.name}`} label={<code>{setting.name}</code>} help={setting.description} problem={problem}>
      {(attributes) => <Control {...attributes} setting={setting} value={value} change={change} />}
    </Field>
  );
}

function Control({ setting, value, change, problem: _, ...attributes }: SettingProps & { id: string }) {
  const choices = setting.type === "boolean" ? ["true", "false"] : setting.choices;
  const initial = defaultOf(setting);
  if (setting.type === "choice" || setting.type === "boolean") {
    return (
      <select {...attributes} value={value} onChange={(event) => change(event.currentTarget.value)}>
        <option value="">{initial}</option>
        {choices.map((each) => (
          <option key={each}>{each}</option>
        ))}
      </select>
    );
  }
  const list = choices.length ? `${attributes.id}-values` : undefined;
  return (
    <>
      <input
        {...attributes}
        inputMode={setting.type === "integer" ? "numeric" : setting.type === "number" ? "decimal" : undefined}
        list={list}
        autocomplete="off"
        placeholder={initial}
        value={value}
        onInput={(event) => change(event.currentTarget.value)}
      />
      {list && (
        <datalist id={list}>
          {choices.map((each) => (
            <option key={each} value={each} />
          ))}
        </datalist>
      )}
    </>
  );
}

export function defaultOf({ default: value }: Setting): string {
  if (value === null || value === "") return "default";
  return `default: ${typeof value === "string" ? value : JSON.stringify(value)}`;
}
