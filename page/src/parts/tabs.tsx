// A row of tabs; the arrow keys move between them.
import { useRef } from "preact/hooks";

interface Props {
  label: string;
  names: readonly string[];
  chosen: string;
  choose: (name: string) => void;
}

export function Tabs({ label, names, chosen, choose }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const move = (event: KeyboardEvent) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = (names.indexOf(chosen) + step + names.length) % names.length;
    choose(names[next]!);
    (box.current!.children[next] as HTMLElement).focus();
  };
  return (
    <div class="tabs" ref={box} role="radiogroup" aria-label={label} onKeyDown={move}>
      {names.map((name) => (
        <button
          key={name}
          type="button"
          role="radio"
          aria-checked={name === chosen}
          tabIndex={name === chosen ? 0 : -1}
          onClick={() => choose(name)}
        >
          {name}
        </button>
      ))}
    </div>
  );
}
