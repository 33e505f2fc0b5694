import { expect, it } from "vitest";
import { Log, type Place, type Read } from "./log";

// A log of numbered lines, as the gateway reads it.
function readerOf(file: { name: string; text: string }) {
  return async ({ limit, offset, file: named }: Place): Promise<Read> => {
    const tail = offset === undefined || (named && named !== file.name);
    let start = tail ? Math.max(0, file.text.length - limit) : offset;
    let text = file.text.slice(start, start + limit);
    if (tail && start) {
      start += text.indexOf("\n") + 1;
      text = file.text.slice(start);
    }
    text = text.slice(0, text.lastIndexOf("\n") + 1);
    return { file: file.name, start, end: start + text.length, text };
  };
}

const shown = (log: Log) => log.pieces.value!.map((each) => each.text).join("");
const lines = (from: number, to: number) => Array.from({ length: to - from }, (_, place) => `line ${from + place}\n`).join("");

it("follows, reads back to the start without gaps, and notes a rotation", async () => {
  const file = { name: "f1", text: lines(0, 40) };
  const log = new Log(readerOf(file), "The log was rotated.", 40);
  await log.poll();
  expect(log.earlier.value).toBeGreaterThan(0);
  file.text += lines(40, 42);
  await log.poll();
  expect(shown(log).endsWith("line 41\n")).toBe(true);
  for (let step = 0; log.earlier.value && step < 50; step++) await log.back();
  expect(shown(log)).toBe(file.text);
  Object.assign(file, { name: "f2", text: lines(42, 43) });
  await log.poll();
  expect(shown(log).endsWith("The log was rotated.\nline 42\n")).toBe(true);
});
