// A log file that is followed at its end and read back at its start.
import { signal } from "@preact/signals";

const LINES_KEPT = 20_000;

export interface Piece {
  id: number;
  text: string;
  lines: number;
}

// Part of a log; `file` changes when the log begins anew, and `end` is the offset that follows the part.
export interface Read {
  file: string;
  start: number;
  end: number;
  text: string;
}

export interface Place {
  limit: number;
  offset?: number;
  file?: string;
}

export class Log {
  readonly pieces = signal<Piece[] | null>(null);
  readonly problem = signal("");
  // Bytes before the first piece.
  readonly earlier = signal(0);
  private file = "";
  private end = 0;
  private made = 0;
  private reading = false;

  constructor(
    private readonly read: (place: Place) => Promise<Read>,
    // Shown where one file follows another.
    private readonly begun = "The log was rotated.",
    // Bytes that are read at once.
    private readonly block = 64 << 10,
  ) {}

  // What was written since the last call.
  poll(): Promise<void> {
    return this.once(async () => {
      const found = await this.read({ limit: this.block, ...(this.file ? { offset: this.end, file: this.file } : {}) });
      const begins = found.file !== this.file || found.start > this.end;
      if (begins) {
        if (this.file) this.append(`${this.begun}\n`);
        else this.earlier.value = found.start;
      }
      this.file = found.file;
      this.end = found.end;
      if (found.text || this.pieces.value === null) this.append(found.text);
    });
  }

  // One block before the first line.
  back(): Promise<void> {
    return this.once(async () => {
      const first = this.earlier.value;
      if (!first) return;
      const start = Math.max(0, first - this.block);
      const found = await this.read({ offset: start, limit: first - start, file: this.file });
      // The block may begin within a line, which belongs to the block before it.
      const cut = start ? found.text.indexOf("\n") + 1 : 0;
      const skipped = new TextEncoder().encode(found.text.slice(0, cut)).length;
      this.earlier.value = found.file === this.file && skipped < first - start ? start + skipped : 0;
      if (found.file === this.file) this.pieces.value = [this.piece(found.text.slice(cut)), ...(this.pieces.value ?? [])];
    });
  }

  private append(text: string): void {
    const pieces = [...(this.pieces.value ?? []), this.piece(text)];
    let lines = pieces.reduce((sum, each) => sum + each.lines, 0);
    while (lines > LINES_KEPT && pieces.length > 1) lines -= pieces.shift()!.lines;
    this.pieces.value = pieces;
  }

  private piece(text: string): Piece {
    return { id: this.made++, text, lines: text.split("\n").length };
  }

  private async once(action: () => Promise<void>): Promise<void> {
    if (this.reading) return;
    this.reading = true;
    try {
      await action();
      this.problem.value = "";
    } catch (error) {
      this.problem.value = (error as Error).message;
    } finally {
      this.reading = false;
    }
  }
}
