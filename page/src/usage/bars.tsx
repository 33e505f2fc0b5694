// Stacked bars, one for each day.
import { useSignal } from "@preact/signals";
import { short } from "../parts/format";
import type { Group } from "./totals";

interface Props {
  days: string[];
  groups: Group[];
  unit: string;
}

const WIDTH = 960;
const HEIGHT = 200;
const GAP = 0.25;

export function Bars({ days, groups, unit }: Props) {
  const active = useSignal(days.length - 1);
  const total = (day: string) => groups.reduce((all, group) => all + (group.days.get(day) ?? 0), 0);
  const most = niceTop(Math.max(1, ...days.map(total)));
  const step = WIDTH / days.length;
  const day = days[Math.min(active.value, days.length - 1)]!;
  const move = (event: KeyboardEvent) => {
    const change = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (change) active.value = Math.min(days.length - 1, Math.max(0, active.value + change));
  };
  return (
    <figure class="card bars">
      <figcaption>
        <strong>
          {day}: {short(total(day))} {unit}
        </strong>
        {groups.map((group, place) => (
          <span key={group.name} class={`key s${place}`}>
            {group.name} {short(group.days.get(day) ?? 0)}
          </span>
        ))}
      </figcaption>
      <div class="plot">
        <span class="axis muted small">{short(most)}</span>
        <svg
          viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
          preserveAspectRatio="none"
          role="img"
          tabIndex={0}
          aria-label={`${unit} by day, highest ${short(Math.max(...days.map(total)))}. Arrow keys move between days.`}
          onKeyDown={move}
        >
          <path class="grid" d={`M0 1H${WIDTH}M0 ${HEIGHT / 2}H${WIDTH}M0 ${HEIGHT - 0.5}H${WIDTH}`} />
          {days.map((each, at) => (
            <g key={each} class={at === active.value ? "active" : ""} onMouseOver={() => (active.value = at)}>
              <rect class="hit" x={at * step} y={0} width={step} height={HEIGHT} />
              <Stack x={at * step + (step * GAP) / 2} width={step * (1 - GAP)} values={groups.map((group) => (group.days.get(each) ?? 0) / most)} />
            </g>
          ))}
        </svg>
      </div>
      <div class="row small muted">
        <span>{days[0]}</span>
        <span class="space" />
        <span>{days.at(-1)}</span>
      </div>
      <p class="muted small">Each bar is a day (UTC). A key or model that grows without a reason deserves a look at its limits.</p>
    </figure>
  );
}

function Stack({ x, width, values }: { x: number; width: number; values: number[] }) {
  let top = HEIGHT;
  return (
    <>
      {values.map((share, place) => {
        const height = share * (HEIGHT - 1);
        top -= height;
        return height > 0 && <rect key={place} class={`fill s${place}`} x={x} y={top} width={width} height={height} />;
      })}
    </>
  );
}

// The next of 1, 2, 5, 10, 20, ...
function niceTop(value: number): number {
  const power = 10 ** Math.floor(Math.log10(value));
  return ([1, 2, 5, 10].find((each) => each * power >= value) ?? 10) * power;
}
