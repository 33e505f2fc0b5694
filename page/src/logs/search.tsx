// Search within an element: matches are highlighted, and Enter goes to the next one.
import { useSignal } from "@preact/signals";
import type { RefObject } from "preact";
import { useEffect, useRef } from "preact/hooks";

const MOST = 2000;

export function Search({ box, changed }: { box: RefObject<HTMLElement>; changed: unknown }) {
  const text = useSignal("");
  const at = useSignal(0);
  const found = useRef<Range[]>([]);
  const total = useSignal(0);
  useEffect(() => {
    found.current = box.current && text.value ? rangesOf(box.current, text.value.toLowerCase()) : [];
    total.value = found.current.length;
    highlight("found", found.current);
  }, [text.value, changed]);
  useEffect(() => () => highlight("found", []), []);
  const move = (step: number) => {
    if (!total.value) return;
    at.value = (at.value + step + total.value) % total.value;
    const range = found.current[at.value]!;
    highlight("current", [range]);
    const top = range.getBoundingClientRect().top - box.current!.getBoundingClientRect().top;
    box.current!.scrollTop += top - box.current!.clientHeight / 2;
  };
  return (
    <>
      <input
        type="search"
        aria-label="Search the log"
        placeholder="Search"
        value={text.value}
        onInput={(event) => {
          text.value = event.currentTarget.value;
          at.value = -1;
          highlight("current", []);
        }}
        onKeyDown={(event) => event.key === "Enter" && (event.preventDefault(), move(event.shiftKey ? -1 : 1))}
      />
      <span class="muted small" role="status">
        {text.value && `${Math.max(0, at.value + 1)} of ${total.value}${total.value === MOST ? " or more" : ""}`}
      </span>
    </>
  );
}

function rangesOf(box: HTMLElement, text: string): Range[] {
  const found: Range[] = [];
  const walker = document.createTreeWalker(box, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node && found.length < MOST; node = walker.nextNode()) {
    const whole = node.nodeValue!.toLowerCase();
    for (let start = whole.indexOf(text); start >= 0 && found.length < MOST; start = whole.indexOf(text, start + text.length)) {
      const range = new Range();
      range.setStart(node, start);
      range.setEnd(node, start + text.length);
      found.push(range);
    }
  }
  return found;
}

// Highlights need no elements, so that long logs stay fast.
function highlight(name: string, ranges: Range[]): void {
  if (!("highlights" in CSS)) return;
  CSS.highlights.set(name, new Highlight(...ranges));
}
