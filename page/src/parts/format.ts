// Numbers and times as text, each with its unit.

export function count(value: number, unit: string): string {
  return `${value.toLocaleString("en")} ${unit}${value === 1 ? "" : "s"}`;
}

export function short(value: number): string {
  return new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 }).format(value);
}

export function bytes(value: number): string {
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  const power = Math.min(units.length - 1, value > 0 ? Math.floor(Math.log2(value) / 10) : 0);
  const scaled = value / 1024 ** power;
  return `${power === 0 || scaled >= 100 ? scaled.toFixed(0) : scaled.toFixed(1)} ${units[power]}`;
}

// Four digits, for figures of any size.
export function significant(value: number | null | undefined): string {
  if (value == null || !Number.isFinite(value)) return value == null ? "–" : String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return value.toLocaleString("en");
  if (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e6)) return value.toExponential(2).replace(/\.?0*e\+?/, "e");
  return String(Number(value.toPrecision(4)));
}

export function seconds(value: number): string {
  if (value < 1) return `${(value * 1000).toFixed(0)} ms`;
  return value < 60 ? `${value.toFixed(1)} s` : age(value * 1000);
}

export function age(ms: number): string {
  const s = Math.max(0, Math.round(ms / 1000));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 86400) return `${Math.floor(s / 3600)} h`;
  return `${Math.floor(s / 86400)} d`;
}

export function day(unixSeconds: number): string {
  return new Date(unixSeconds * 1000).toISOString().slice(0, 10);
}

export function percent(share: number): string {
  return `${(share * 100).toFixed(share < 0.1 ? 1 : 0)} %`;
}
