// A log as text: follow, scroll back, search.
import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { count } from "../parts/format";
import { Icon } from "../parts/icon";
import { Skeleton } from "../parts/states";
import { connected } from "../state/live";
import { lineOf } from "./line";
import type { Log, Piece } from "./log";
import { Search } from "./search";
import "./style.css";

const POLL_MS = 1000;
const NEAR = 40;

interface Props {
  log: Log;
  name: string;
  // Shown before the other controls.
  tools?: ComponentChildren;
  // An ended log is read once.
  ended?: boolean;
}

export function LogView({ log, name, tools, ended }: Props) {
  const following = useSignal(true);
  const box = useRef<HTMLDivElement>(null);
  const height = useRef(0);
  const pieces = log.pieces.value;
  useEffect(() => {
    void log.poll();
    if (ended) return;
    const timer = setInterval(() => following.value && void log.poll(), POLL_MS);
    return () => clearInterval(timer);
  }, [log, ended]);
  // The text stays in place when earlier lines are put above it.
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    if (following.value) element.scrollTop = element.scrollHeight;
    else if (height.current) element.scrollTop += element.scrollHeight - height.current;
    height.current = 0;
  }, [pieces, following.value]);
  const back = async () => {
    following.value = false;
    const before = box.current?.scrollHeight ?? 0;
    await log.back();
    height.current = before;
  };
  const noteScroll = () => {
    if (!box.current) return; // an event that was queued when the view was left
    const { scrollTop, scrollHeight, clientHeight } = box.current;
    following.value = scrollHeight - scrollTop - clientHeight < NEAR;
    if (scrollTop < NEAR && log.earlier.value && scrollHeight > clientHeight) void back();
  };
  return (
    <section class="logs" aria-label={`Log of ${name}`}>
      <div class="row toolbar">
        {tools}
        <button type="button" aria-pressed={following.value} onClick={() => (following.value = !following.value)}>
          Follow
        </button>
        <Search box={box} changed={pieces} />
        <span class="space" />
        <span class="muted small">
          {pieces && count(pieces.reduce((sum, each) => sum + each.lines - 1, 0), "line")}
        </span>
      </div>
      {log.problem.value && (
        <p class="banner" role="alert">
          <Icon name="warning" /> <span>{log.problem.value}</span>
        </p>
      )}
      {pieces === null && !log.problem.value && <Skeleton heights={["fill"]} />}
      {pieces !== null && (
        <div class={connected.value ? "lines" : "lines stale"} ref={box} tabIndex={0} role="log" aria-live="off" aria-label={`Lines of ${name}`} onScroll={noteScroll}>
          {log.earlier.value > 0 && (
            <button type="button" onClick={() => void back()}>
              Earlier lines
            </button>
          )}
          {pieces.every((each) => !each.text) && <p class="muted">The log is empty.</p>}
          {pieces.map((piece) => (
            <Lines key={piece.id} piece={piece} />
          ))}
        </div>
      )}
    </section>
  );
}

function Lines({ piece }: { piece: Piece }) {
  return useMemo(
    () => (
      <pre>
        {piece.text.split("\n").map((text, place) => {
          const line = lineOf(text);
          return (
            text && (
              <div key={place} class={`line ${line.level}`}>
                {line.time && <time>{line.time} </time>}
                {line.text}
              </div>
            )
          );
        })}
      </pre>
    ),
    [piece],
  );
}
