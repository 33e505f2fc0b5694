// One conversation with one model: sends, streams, stops, repeats and corrects.
import { type Signal, signal } from "@preact/signals";
import { announce } from "../parts/announce";
import { send } from "../state/api";
import { events } from "../state/events";
import { request } from "./request";
import type { Settings } from "./settings";
import { read, type StreamEvent, type Turn, turn } from "./turn";

const SHORTEST_FRAME_MS = 33;
const LONGEST_FRAME_MS = 400;
// Long texts are drawn less often.
const CHARACTERS_PER_MS = 400;

export class Chat {
  readonly turns: Signal<Turn[]> = signal([]);
  readonly busy = signal(false);
  private stopper = new AbortController();

  constructor(readonly model: Signal<string>) {}

  stop(): void {
    this.stopper.abort();
  }

  clear(): void {
    this.stop();
    this.stopper = new AbortController();
    this.busy.value = false;
    this.turns.value = [];
  }

  say(text: string, settings: Settings): Promise<void> {
    return this.answer([...this.turns.value, turn("user", text)], settings);
  }

  // The result of a tool. The model continues once each of its calls has one.
  async returnResult(callId: string, text: string, settings: Settings): Promise<void> {
    const turns = [...this.turns.value, { ...turn("tool", text), callId }];
    const calls = turns.findLast((each) => each.role === "assistant")?.calls ?? [];
    const done = calls.every((each) => turns.some((other) => other.role === "tool" && other.callId === each.id));
    if (done) await this.answer(turns, settings);
    else this.turns.value = turns;
  }

  // Generates the turn at `place` again.
  again(place: number, settings: Settings): Promise<void> {
    return this.answer(this.turns.value.slice(0, place), settings);
  }

  // A corrected message: the turns after one of the user are generated again.
  async edit(place: number, content: string, settings: Settings): Promise<void> {
    const old = this.turns.value[place];
    if (!old) return;
    const edited = old.role === "user" ? turn("user", content) : { ...old, content, tokens: [], error: "" };
    if (old.role === "user") await this.answer([...this.turns.value.slice(0, place), edited], settings);
    else this.turns.value = this.turns.value.map((each, at) => (at === place ? edited : each));
  }

  private async answer(turns: Turn[], settings: Settings): Promise<void> {
    this.stop();
    const stopper = (this.stopper = new AbortController());
    let last = turn("assistant");
    const show = () => {
      if (this.stopper === stopper) this.turns.value = [...turns, last];
    };
    this.busy.value = true;
    this.turns.value = [...turns, last];
    const begun = performance.now();
    try {
      const body = { ...request(this.model.value, turns, settings), stream: true, stream_options: { include_usage: true } };
      const response = await send("POST", "/v1/chat/completions", body, stopper.signal);
      for await (const batch of batches(response, () => last.content.length)) {
        last = read(last, batch);
        last.seconds = (performance.now() - begun) / 1000;
        last.firstSeconds ||= last.seconds;
        show();
      }
      if (!last.finish) throw new Error("The connection ended before the response was complete.");
    } catch (error) {
      const stopped = stopper.signal.aborted;
      last = { ...last, error: stopped ? "" : (error as Error).message, finish: stopped ? "stopped" : "error" };
    }
    last = { ...last, seconds: (performance.now() - begun) / 1000 };
    show();
    if (this.stopper !== stopper) return;
    this.busy.value = false;
    announce(last.error || `Response of ${this.model.value}: ${last.finish}`);
  }
}

// Events of the stream, gathered so that the page draws some times a second, not once a token.
async function* batches(response: Response, length: () => number): AsyncGenerator<StreamEvent[]> {
  let held: StreamEvent[] = [];
  let drawn = 0;
  for await (const data of events(response)) {
    if (data === "[DONE]") break;
    const event = JSON.parse(data) as StreamEvent;
    if (event.error) {
      if (held.length) yield held;
      throw new Error(event.error.message);
    }
    held.push(event);
    const frame = Math.min(LONGEST_FRAME_MS, SHORTEST_FRAME_MS + length() / CHARACTERS_PER_MS);
    if (performance.now() - drawn < frame) continue;
    yield held;
    held = [];
    drawn = performance.now();
  }
  if (held.length) yield held;
}
