// A small chart of values over time, from zero or from the lowest negative value.
interface Props {
  label: string;
  times: number[];
  lines: { name: string; values: (number | null)[] }[];
  // The top of the chart; at least the largest value.
  top: number;
  show: (value: number) => string;
}

const WIDTH = 240;
const HEIGHT = 40;
const MOST_POINTS = WIDTH;

export function Sparkline({ label, times, lines, top, show }: Props) {
  const first = times[0] ?? 0;
  const span = Math.max(1, (times.at(-1) ?? 0) - first);
  const values = lines.flatMap((line) => line.values.filter((value) => value != null));
  const highest = values.length ? Math.max(...values) : 0;
  const most = Math.max(top, highest);
  const least = Math.min(0, ...values);
  const range = most - least || 1;
  const point = (value: number, place: number) =>
    `${(((times[place]! - first) / span) * WIDTH).toFixed(1)},${(HEIGHT - 1 - ((value - least) / range) * (HEIGHT - 2)).toFixed(1)}`;
  const latest = lines.map((line) => `${line.name} ${show(line.values.at(-1) ?? 0)}`).join(", ");
  return (
    <svg class="sparkline" viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label={`${label}: ${latest}, highest ${show(highest)}`}>
      <path class="grid" d={`M0 ${HEIGHT - 0.5}H${WIDTH}M0 0.5H${WIDTH}`} />
      {lines.map((line, place) => (
        <polyline key={line.name} class={`series s${place}`} points={thinned(line.values).map(([at, value]) => point(value, at)).join(" ")} />
      ))}
    </svg>
  );
}

// The largest value of each group, so that a peak is not lost.
function thinned(values: (number | null)[]): [number, number][] {
  const found: [number, number][] = [];
  const size = Math.max(1, Math.ceil(values.length / MOST_POINTS));
  for (let start = 0; start < values.length; start += size) {
    let best: [number, number] | null = null;
    for (let at = start; at < Math.min(values.length, start + size); at++) {
      const value = values[at];
      if (value != null && (!best || value > best[1])) best = [at, value];
    }
    if (best) found.push(best);
  }
  return found;
}
