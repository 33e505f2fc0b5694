// A line of a log, with the fields of a JSON record in reading order.

export interface Line {
  time: string;
  level: string;
  text: string;
}

export function lineOf(text: string): Line {
  const record = recordOf(text);
  if (!record) return { time: "", level: "", text };
  const { time, level, logger, message, ...others } = record;
  const fields = Object.entries(others).map(([name, value]) => `${name}=${typeof value === "string" ? value : JSON.stringify(value)}`);
  return {
    time: String(time).replace("T", " ").replace("Z", ""),
    level: String(level),
    text: [level, logger, message, ...fields].filter((each) => each !== undefined).join(" "),
  };
}

function recordOf(text: string): Record<string, unknown> | null {
  if (!text.startsWith("{")) return null;
  try {
    const record = JSON.parse(text);
    return "time" in record && "message" in record ? record : null;
  } catch {
    return null;
  }
}
