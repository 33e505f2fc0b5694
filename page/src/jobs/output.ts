// Output of a job's attempt, read by byte offset in whole lines.
import type { Place, Read } from "../logs/log";
import { send } from "../state/api";

const NEWLINE = 10;

export function reader(job: string, attempt: number): (place: Place) => Promise<Read> {
  let held = -1;
  return async ({ limit, offset }) => {
    const query = new URLSearchParams({ attempt: String(attempt), offset: String(offset ?? -limit), length: String(limit) });
    const response = await send("GET", `/v1/jobs/${encodeURIComponent(job)}/logs?${query}`);
    const bytes = new Uint8Array(await response.arrayBuffer());
    const start = Number(response.headers.get("X-Log-Offset"));
    const size = Number(response.headers.get("X-Log-Size"));
    const first = offset === undefined && start > 0 ? bytes.indexOf(NEWLINE) + 1 : 0;
    const last = lineEnd(bytes, start, size, held);
    held = size;
    return { file: "output", start: start + first, end: start + Math.max(first, last), text: new TextDecoder().decode(bytes.slice(first, Math.max(first, last))) };
  };
}

// Bytes up to the end of the last whole line. An unfinished line is shown when the output has stopped there.
function lineEnd(bytes: Uint8Array, start: number, size: number, held: number): number {
  const whole = bytes.lastIndexOf(NEWLINE) + 1;
  const stopped = start + bytes.length === size && held === size;
  return whole === 0 && (stopped || start + bytes.length < size) ? bytes.length : whole;
}
