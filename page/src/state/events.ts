// Server-sent events of a response.

// Data of each event; with `comments` also "" for a comment, which shows that the connection works.
export async function* events(response: Response, comments = false): AsyncGenerator<string> {
  const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (held + value).split("\n\n");
      held = parts.pop()!;
      for (const part of parts) {
        const data = dataOf(part);
        if (data !== null) yield data;
        else if (comments) yield "";
      }
    }
  } finally {
    await reader.cancel().catch(() => undefined);
  }
}

export function dataOf(event: string): string | null {
  const lines = event
    .split("\n")
    .filter((line) => line.startsWith("data:"))
    .map((line) => line.slice(5).replace(/^ /, ""));
  return lines.length ? lines.join("\n") : null;
}
