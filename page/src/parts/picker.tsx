// A field with a list of matching choices: the model switcher and the command palette.
import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";

export interface Choice {
  group: string;
  label: string;
  hint?: string;
  act: () => void;
}

interface Props {
  id: string;
  label: string;
  placeholder: string;
  choices: Choice[];
  // The list is shown only while the field has the focus.
  folded?: boolean;
  done: () => void;
}

const MOST = 50;

export function Picker({ id, label, placeholder, choices, folded, done }: Props) {
  const text = useSignal("");
  const at = useSignal(0);
  const open = useSignal(!folded);
  const list = useRef<HTMLUListElement>(null);
  const field = useRef<HTMLInputElement>(null);
  const found = matching(choices, text.value).slice(0, MOST);
  useEffect(() => list.current?.querySelector("[aria-selected=true]")?.scrollIntoView({ block: "nearest" }));
  useEffect(() => {
    if (!folded) field.current?.focus();
  }, []);

  const choose = (choice: Choice | undefined) => {
    if (!choice) return;
    text.value = "";
    field.current?.blur();
    done();
    choice.act();
  };
  const onKey = (event: KeyboardEvent) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) at.value = (at.value + step + found.length) % Math.max(1, found.length);
    else if (event.key === "Enter") choose(found[at.value]);
    else if (event.key === "Escape" && folded) field.current?.blur();
    else return;
    event.preventDefault();
  };
  return (
    <div class="picker">
      <input
        id={id}
        ref={field}
        role="combobox"
        aria-label={label}
        aria-expanded={open.value}
        aria-controls={`${id}-list`}
        aria-activedescendant={open.value && found.length ? `${id}-${at.value}` : undefined}
        autocomplete="off"
        placeholder={placeholder}
        value={text.value}
        onInput={(event) => {
          text.value = event.currentTarget.value;
          at.value = 0;
        }}
        onFocus={() => (open.value = true)}
        onBlur={() => folded && ((open.value = false), (text.value = ""), (at.value = 0))}
        onKeyDown={onKey}
      />
      {open.value && (
        <ul id={`${id}-list`} ref={list} role="listbox" aria-label={label}>
          {found.map((choice, place) => (
            <li
              key={`${choice.group} ${choice.label}`}
              id={`${id}-${place}`}
              role="option"
              aria-selected={place === at.value}
              onMouseDown={(event) => (event.preventDefault(), choose(choice))}
              onMouseMove={() => (at.value = place)}
            >
              <span class="muted">{choice.group}</span> <span class="grow">{choice.label}</span>
              {choice.hint && <kbd>{choice.hint}</kbd>}
            </li>
          ))}
          {found.length === 0 && (
            <li class="muted" role="option" aria-selected="false" aria-disabled="true">
              {text.value ? `Nothing matches “${text.value}”.` : "There is nothing to choose."}
            </li>
          )}
        </ul>
      )}
    </div>
  );
}

// Choices that contain every word, those that begin with the text first.
export function matching(choices: Choice[], text: string): Choice[] {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const found = choices.filter((each) => {
    const whole = `${each.group} ${each.label}`.toLowerCase();
    return words.every((word) => whole.includes(word));
  });
  const begins = (each: Choice) => each.label.toLowerCase().startsWith(words[0] ?? "");
  return [...found.filter(begins), ...found.filter((each) => !begins(each))];
}
