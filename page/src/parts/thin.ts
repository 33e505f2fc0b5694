// Curves of many points, reduced to what a chart can show.
export interface Curve {
  name: string;
  x: number[];
  y: (number | null)[];
}

export const MOST_POINTS = 5000;

// The least and the largest value of each group of points, so that no peak is lost.
export function thinned(curve: Curve, most = MOST_POINTS): Curve {
  const { name, x, y } = curve;
  if (x.length <= most) return curve;
  const size = Math.ceil((2 * x.length) / most);
  const places: number[] = [];
  for (let start = 0; start < x.length; start += size) {
    let low = -1;
    let high = -1;
    for (let at = start; at < Math.min(x.length, start + size); at++) {
      const value = y[at];
      if (value == null) continue;
      if (low < 0 || value < y[low]!) low = at;
      if (high < 0 || value > y[high]!) high = at;
    }
    if (low < 0) continue;
    places.push(...(low === high ? [low] : low < high ? [low, high] : [high, low]));
  }
  return { name, x: places.map((at) => x[at]!), y: places.map((at) => y[at]!) };
}

// Mean of the last `steps` values at each point; null where there is none.
export function smoothed(curve: Curve, steps: number): Curve {
  if (steps < 2) return curve;
  const recent: number[] = [];
  let sum = 0;
  const y = curve.y.map((value) => {
    if (value === null) return null;
    recent.push(value);
    sum += value;
    if (recent.length > steps) sum -= recent.shift()!;
    return sum / recent.length;
  });
  return { ...curve, y };
}

// Columns of a chart: every x of any curve, and the values of each curve there.
export function joined(curves: Curve[]): [number[], ...(number | null | undefined)[][]] {
  const all = [...new Set(curves.flatMap((each) => each.x))].sort((one, other) => one - other);
  const place = new Map(all.map((value, at) => [value, at]));
  return [
    all,
    ...curves.map(({ x, y }) => {
      // `undefined` joins the points beside it, `null` is a gap.
      const column = new Array<number | null | undefined>(all.length).fill(undefined);
      x.forEach((value, at) => (column[place.get(value)!] = y[at]));
      return column;
    }),
  ];
}

export function csvOf(curves: Curve[], x = "step"): string {
  const [places, ...columns] = joined(curves);
  const names = [x, ...curves.map((each) => (/[",\n]/.test(each.name) ? `"${each.name.replaceAll('"', '""')}"` : each.name))];
  return [names.join(","), ...places.map((place, at) => [place, ...columns.map((each) => each[at] ?? "")].join(","))].join("\n");
}
