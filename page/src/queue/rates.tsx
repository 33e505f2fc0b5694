// Rates of the queue while the view is open.
import { useEffect, useRef } from "preact/hooks";
import { short } from "../parts/format";
import { Sparkline } from "../parts/sparkline";
import type { QueueSummary } from "../state/api";

const MOST_POINTS = 300;
const SERIES = {
  "requests/s": (summary: QueueSummary) => summary.rates.requests_per_second,
  "output tokens/s": (summary: QueueSummary) => summary.rates.output_tokens_per_second,
};

export function Rates({ summary }: { summary: QueueSummary }) {
  const past = useRef<{ time: number; summary: QueueSummary }[]>([]);
  const seen = past.current.at(-1)?.summary;
  useEffect(() => {
    if (seen !== summary) past.current = [...past.current, { time: Date.now(), summary }].slice(-MOST_POINTS);
  }, [summary]);
  const points = past.current;
  return (
    <div class="rates">
      {Object.entries(SERIES).map(([name, value]) => (
        <figure key={name}>
          <figcaption class="small">
            <span class="key s0">
              {short(value(summary))} {name}
            </span>
          </figcaption>
          <Sparkline label={name} times={points.map((each) => each.time)} lines={[{ name, values: points.map((each) => value(each.summary)) }]} top={1} show={short} />
        </figure>
      ))}
      <p class="muted small">Means of the last minute, since the view was opened. Zero while requests wait means that no worker serves their model.</p>
    </div>
  );
}
