// Logs of the parts.
import { useMemo } from "preact/hooks";
import { Log } from "../logs/log";
import { LogView } from "../logs/view";
import { Content } from "../parts/loaded";
import { Empty } from "../parts/states";
import { call, type LogText } from "../state/api";
import { useLoaded } from "../state/load";
import { params, setParams } from "../state/route";

export function Logs() {
  const loaded = useLoaded(async () => (await call<{ data: string[] }>("GET", "/v1/health/logs")).data);
  return (
    <Content of={loaded} name="logs">
      {(parts) => (parts.length ? <Chosen parts={parts} /> : <NoLogs />)}
    </Content>
  );
}

function Chosen({ parts }: { parts: string[] }) {
  const named = params.value.get("part") ?? "";
  const part = parts.includes(named) ? named : parts[0]!;
  const log = useMemo(() => logOf(part), [part]);
  const tools = (
    <select aria-label="Part" value={part} onChange={(event) => setParams({ part: event.currentTarget.value })}>
      {parts.map((each) => (
        <option key={each}>{each}</option>
      ))}
    </select>
  );
  return <LogView key={part} log={log} name={part} tools={tools} />;
}

function logOf(part: string): Log {
  return new Log((place) => {
    const query = new URLSearchParams(Object.entries(place).map(([name, value]) => [name, String(value)]));
    return call<LogText>("GET", `/v1/health/logs/${encodeURIComponent(part)}?${query}`);
  });
}

function NoLogs() {
  return (
    <Empty icon="server" title="No logs">
      <p>
        Parts that <code>rondo up</code> starts write logs.
      </p>
    </Empty>
  );
}
