// The tokens of a response, each with its probability and its alternatives.
import { useSignal } from "@preact/signals";
import { useMemo, useRef } from "preact/hooks";
import { percent } from "../parts/format";
import type { Token } from "./turn";

const BLOCK = 200;
const LEVELS = 4;

export function Tokens({ tokens }: { tokens: Token[] }) {
  const active = useSignal(-1);
  const box = useRef<HTMLDivElement>(null);
  const starts = Array.from({ length: Math.ceil(tokens.length / BLOCK) }, (_, place) => place * BLOCK);
  const token = tokens[active.value];
  const hover = (event: MouseEvent) => {
    const place = (event.target as HTMLElement).dataset?.place;
    if (place !== undefined) active.value = Number(place);
  };
  const onKey = (event: KeyboardEvent) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (event.key === "Escape") active.value = -1;
    if (!step) return;
    event.preventDefault();
    active.value = Math.min(tokens.length - 1, Math.max(0, active.value + step));
  };
  return (
    <div class="tokens" ref={box} onMouseLeave={() => (active.value = -1)}>
      <p
        class="text"
        dir="auto"
        role="group"
        tabIndex={0}
        aria-label="Tokens with log-probabilities, arrow keys move"
        onMouseOver={hover}
        onKeyDown={onKey}
        onFocus={() => (active.value = Math.max(0, active.value))}
        onBlur={() => (active.value = -1)}
      >
        {starts.map((start) => (
          <Block key={start} start={start} tokens={tokens.slice(start, start + BLOCK)} />
        ))}
      </p>
      {token && <Alternatives token={token} place={active.value} box={box.current} />}
    </div>
  );
}

// Full blocks stay as they are while later tokens arrive.
function Block({ start, tokens }: { start: number; tokens: Token[] }) {
  return useMemo(
    () => (
      <>
        {tokens.map((token, place) => (
          <span key={place} class={`token p${level(token.logprob)}`} data-place={start + place}>
            {token.text}
          </span>
        ))}
      </>
    ),
    [tokens[0], tokens.length],
  );
}

function level(logprob: number | null): number {
  return logprob === null ? LEVELS : Math.min(LEVELS, Math.floor(Math.exp(logprob) * (LEVELS + 1)));
}

function Alternatives({ token, place, box }: { token: Token; place: number; box: HTMLElement | null }) {
  const card = (element: HTMLElement | null) => {
    const word = box?.querySelector<HTMLElement>(`[data-place="${place}"]`);
    box?.querySelector(".token.active")?.classList.remove("active");
    if (!element || !word || !box) return;
    const left = Math.max(0, Math.min(word.offsetLeft, box.clientWidth - element.offsetWidth));
    element.style.left = `${left}px`;
    element.style.top = `${word.offsetTop + word.offsetHeight + 4}px`;
    word.classList.add("active");
  };
  const others = token.others.filter((each) => each.text !== token.text || each.logprob !== token.logprob);
  return (
    <div class="alternatives" ref={card} role="status">
      <Row text={token.text} logprob={token.logprob} chosen />
      {others.map((each, at) => (
        <Row key={at} text={each.text} logprob={each.logprob} />
      ))}
    </div>
  );
}

function Row({ text, logprob, chosen }: { text: string; logprob: number | null; chosen?: boolean }) {
  const share = logprob === null ? 0 : Math.exp(logprob);
  const bar = (element: HTMLElement | null) => {
    if (element) element.style.width = `${Math.round(share * 100)}%`;
  };
  return (
    <div class={chosen ? "chosen" : ""}>
      <code>{JSON.stringify(text).slice(1, -1)}</code>
      <span class="bar" aria-hidden="true">
        <span ref={bar} />
      </span>
      <span class="number">{logprob === null ? "unknown" : percent(share)}</span>
      <span class="number muted">{logprob?.toFixed(3)}</span>
    </div>
  );
}
