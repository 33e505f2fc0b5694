// Requests and tokens by key, day and model.
import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { call, type ShownKey, type UsageRow } from "./api";

const rows = signal<UsageRow[] | null>(null);
const names = signal<Record<string, string>>({});
const problem = signal("");

export function Usage() {
  useEffect(() => void load(), []);
  if (problem.value) {
    return (
      <p class="error" role="alert">
        {problem.value} <button type="button" onClick={() => void load()}>Retry</button>
      </p>
    );
  }
  if (rows.value === null) return <div class="skeleton tall" aria-busy="true" />;
  return (
    <>
      <h1>Usage</h1>
      <p class="muted">Requests and tokens by key, day (UTC) and model.</p>
      {rows.value.length === 0 ? (
        <p>
          No requests yet. Try a model in the <a href="#/playground">playground</a>.
        </p>
      ) : (
        <div class="scroll">
          <table>
            <thead>
              <tr>
                <th>Day</th>
                <th>Key</th>
                <th>Model</th>
                <th class="number">Requests</th>
                <th class="number">Input tokens</th>
                <th class="number">Output tokens</th>
              </tr>
            </thead>
            <tbody>
              {[...rows.value].reverse().map((row) => (
                <tr key={`${row.day} ${row.key} ${row.model}`}>
                  <td>{row.day}</td>
                  <td>{names.value[row.key] ?? row.key}</td>
                  <td>{row.model}</td>
                  <td class="number">{row.requests.toLocaleString()}</td>
                  <td class="number">{row.input_tokens.toLocaleString()}</td>
                  <td class="number">{row.output_tokens.toLocaleString()}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </>
  );
}

async function load(): Promise<void> {
  problem.value = "";
  try {
    rows.value = (await call<{ data: UsageRow[] }>("GET", "/v1/usage")).data;
    const own = await call<ShownKey>("GET", "/v1/key");
    const known = own.role === "admin" ? (await call<{ data: ShownKey[] }>("GET", "/v1/keys")).data : [own];
    names.value = Object.fromEntries(known.map((each) => [each.id, each.name]));
  } catch (error) {
    problem.value = (error as Error).message;
  }
}
