// A line chart: crosshair shared by the charts of a view, drag to zoom, double click to show everything, PNG and CSV.
import { useSignal } from "@preact/signals";
import { useEffect, useMemo, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { theme } from "../state/theme";
import "./chart.css";
import { download } from "./copy";
import { significant } from "./format";
import { type Curve, csvOf, joined, smoothed, thinned } from "./thin";

export interface ChartProps {
  title: string;
  // What the chart shows, and what a bad shape means.
  explain: string;
  curves: Curve[];
  unit?: string;
  // The axis begins at zero: for counts, rates and shares.
  zero?: boolean;
  // Offers a logarithmic axis.
  logs?: boolean;
  // Each curve lies upon the one before it.
  stacked?: boolean;
  smooth?: number;
}

const HEIGHT = 200;
const NARROW = 480;
const LEVEL = 1e-9;
// Distances of marks on the axis of steps.
const STEPS = Array.from({ length: 24 }, (_, place) => [1, 2, 5][place % 3]! * 10 ** Math.floor(place / 3));
const DASHES = [[], [6, 3], [2, 2], [8, 3, 2, 3], [12, 4], [1, 3], [4, 4]];
export const COLOURS = DASHES.length;
const SYNC = uPlot.sync("charts");

export function Chart(props: ChartProps) {
  const { title, explain, unit = "", curves } = props;
  const logarithmic = useSignal(false);
  const at = useSignal<number | null>(null);
  const figure = useRef<HTMLElement>(null);
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const table = useMemo(() => tableOf(props), [curves, props.smooth, props.stacked]);
  const names = curves.map((each) => each.name).join("\n");

  useEffect(() => {
    const colour = colours(figure.current!);
    const made = new uPlot(options(props, box.current!, colour, logarithmic.value, (place) => (at.value = place)), table.drawn, box.current!);
    plot.current = made;
    const fit = new ResizeObserver(() => made.setSize({ width: box.current!.clientWidth, height: heightOf(box.current!) }));
    fit.observe(box.current!);
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const redraw = () => made.redraw(false);
    dark.addEventListener("change", redraw);
    return () => {
      dark.removeEventListener("change", redraw);
      fit.disconnect();
      made.destroy();
    };
  }, [names, logarithmic.value, props.stacked, props.smooth]);
  useEffect(() => {
    const made = plot.current;
    if (!made) return;
    const [first, last] = [made.data[0][0], made.data[0].at(-1)];
    const { min, max } = made.scales.x!;
    const zoomed = min != null && max != null && first != null && (min > first || max < last!);
    made.setData(table.drawn, !zoomed);
    if (zoomed) made.redraw();
  }, [table]);
  useEffect(() => void requestAnimationFrame(() => plot.current?.redraw(false)), [theme.value]);

  const shown = at.value === null ? null : table.x[at.value];
  const value = (place: number) => valueAt(table.values[place]!, at.value);
  const said = curves.map((each, place) => `${each.name} ${significant(value(place))}`).join(", ");
  return (
    <figure class="chart" ref={figure}>
      <figcaption>
        <div class="row">
          <h2>
            {title}
            {unit && <span class="muted"> ({unit})</span>}
          </h2>
          <span class="space" />
          {props.logs && (
            <button type="button" class="quiet" aria-pressed={logarithmic.value} onClick={() => (logarithmic.value = !logarithmic.value)}>
              log
            </button>
          )}
          <button type="button" class="quiet" aria-label={`PNG of ${title}`} onClick={() => savePicture(title, plot.current!)}>
            PNG
          </button>
          <button type="button" class="quiet" aria-label={`CSV of ${title}`} onClick={() => download(`${title}.csv`, csvOf(curves), "text/csv")}>
            CSV
          </button>
        </div>
        <p class="legend small">
          <span class="muted">{shown == null ? "latest" : `step ${shown}`}</span>
          {curves.map((each, place) => (
            <span key={each.name} class={`key s${place % COLOURS}`}>
              {each.name} <strong>{significant(value(place))}</strong>
            </span>
          ))}
        </p>
      </figcaption>
      <div class="plot" ref={box} role="img" aria-label={`${title} by step, latest values: ${said}`} />
      <p class="muted small">{explain}</p>
    </figure>
  );
}

interface Drawn {
  x: number[];
  // Values of each curve at each x.
  values: (number | null | undefined)[][];
  drawn: uPlot.AlignedData;
}

function tableOf({ curves, stacked, smooth = 0 }: ChartProps): Drawn {
  const fine = curves.map((each) => thinned(smoothed(each, smooth)));
  const [x, ...values] = joined(fine);
  if (!stacked) return { x, values, drawn: withRaw(curves, smooth, x, values) };
  const sums = new Array<number>(x.length).fill(0);
  const heaps = values.map((column) => column.map((value, place) => (sums[place] = sums[place]! + (value ?? 0))));
  return { x, values, drawn: [x, ...heaps.reverse()] };
}

// Smoothed lines lie before the raw ones.
function withRaw(curves: Curve[], smooth: number, x: number[], values: (number | null | undefined)[][]): uPlot.AlignedData {
  if (smooth < 2) return [x, ...values] as uPlot.AlignedData;
  const both = [...curves.map((each) => thinned(each)), ...curves.map((each) => thinned(smoothed(each, smooth)))];
  return joined(both) as uPlot.AlignedData;
}

function options({ curves, zero, stacked, smooth = 0 }: ChartProps, box: HTMLElement, colour: (name: string) => string, logarithmic: boolean, point: (place: number | null) => void): uPlot.Options {
  const axis: uPlot.Axis = {
    stroke: () => colour("--muted"),
    grid: { stroke: () => colour("--border"), width: 1 },
    ticks: { show: false },
    font: "11px system-ui, sans-serif",
  };
  const line = (place: number, faint: boolean): uPlot.Series => ({
    stroke: () => colour(`--s${place % COLOURS}`),
    alpha: faint ? 0.3 : 1,
    width: 1.5,
    dash: stacked ? [] : DASHES[place % COLOURS],
    fill: stacked ? () => colour(`--s${place % COLOURS}`) : undefined,
    points: { show: (plot) => plot.data[0].length < 30 && !stacked },
  });
  const lines = curves.map((_, place) => line(place, smooth >= 2));
  const series = stacked ? lines.reverse() : smooth >= 2 ? [...lines, ...curves.map((_, place) => line(place, false))] : lines;
  return {
    width: box.clientWidth,
    height: heightOf(box),
    legend: { show: false },
    padding: [8, 12, 0, 0],
    cursor: { sync: { key: SYNC.key }, y: false, points: { show: !stacked } },
    scales: {
      x: { time: false },
      y: logarithmic ? { distr: 3 } : { range: (_, low, high) => around(low, high, zero || stacked) },
    },
    axes: [{ ...axis, size: 28, incrs: STEPS }, { ...axis, size: 54, values: (_, ticks) => ticks.map((each) => (each == null ? "" : significant(each))) }],
    series: [{}, ...series],
    hooks: { setCursor: [(plot) => point(plot.cursor.idx ?? null)] },
  };
}

function around(low: number | null, high: number | null, zero?: boolean): [number, number] {
  if (low == null || high == null) return [0, 1];
  const least = zero ? Math.min(0, low) : low;
  // A mean of equal values differs from them by its rounding.
  const level = high - least <= Math.abs(high) * LEVEL;
  const margin = level ? Math.abs(high) * 0.1 || 1 : (high - least) * 0.06;
  return [zero && least === 0 ? 0 : least - margin, high + margin];
}

function heightOf(box: HTMLElement): number {
  return box.clientWidth < NARROW ? HEIGHT * 0.85 : HEIGHT;
}

// Colours of the theme, which a canvas does not resolve by itself.
function colours(element: HTMLElement): (name: string) => string {
  return (name) => {
    const before = element.style.outlineColor;
    element.style.outlineColor = `var(${name})`;
    const found = getComputedStyle(element).outlineColor;
    element.style.outlineColor = before;
    return found;
  };
}

function valueAt(column: (number | null | undefined)[], place: number | null): number | null {
  if (place !== null) return column[place] ?? null;
  return column.findLast((each) => each != null) ?? null;
}

function savePicture(title: string, plot: uPlot): void {
  const canvas = document.createElement("canvas");
  Object.assign(canvas, { width: plot.ctx.canvas.width, height: plot.ctx.canvas.height });
  const context = canvas.getContext("2d")!;
  context.fillStyle = getComputedStyle(document.body).backgroundColor;
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(plot.ctx.canvas, 0, 0);
  const link = document.createElement("a");
  link.href = canvas.toDataURL("image/png");
  link.download = `${title}.png`;
  link.click();
}
