// API keys: list, create, revoke. The text of a new key is shown once.
import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { call, type NewKey, type ShownKey } from "./api";

const list = signal<ShownKey[] | null>(null);
const made = signal<ShownKey | null>(null);
const problem = signal("");

export function Keys() {
  useEffect(() => void load(), []);
  return (
    <>
      <h1>API keys</h1>
      {problem.value && (
        <p class="error" role="alert">
          {problem.value} <button type="button" onClick={() => void load()}>Retry</button>
        </p>
      )}
      <Create />
      {made.value && <Secret made={made.value} />}
      {list.value === null && !problem.value && <div class="skeleton tall" aria-busy="true" />}
      {list.value !== null && <Table rows={list.value} />}
    </>
  );
}

async function load(): Promise<void> {
  await attempt(async () => {
    list.value = (await call<{ data: ShownKey[] }>("GET", "/v1/keys")).data;
  });
}

async function attempt(action: () => Promise<void>): Promise<void> {
  problem.value = "";
  try {
    await action();
  } catch (error) {
    problem.value = (error as Error).message;
  }
}

function Create() {
  return (
    <form
      class="card row wrap"
      onSubmit={(event) => {
        event.preventDefault();
        const form = new FormData(event.currentTarget);
        const number = (name: string) => (form.get(name) ? Number(form.get(name)) : null);
        const body = {
          name: String(form.get("name")),
          role: String(form.get("role")),
          models: String(form.get("models")).split(",").map((each) => each.trim()).filter(Boolean),
          requests_per_minute: number("requests"),
          tokens_per_day: number("tokens"),
          expires_in: number("days") === null ? null : number("days")! * 86400,
        } as NewKey;
        event.currentTarget.reset();
        void attempt(async () => {
          made.value = await call<ShownKey>("POST", "/v1/keys", body);
          await load();
        });
      }}
    >
      <label>
        Name
        <input name="name" required maxLength={100} />
      </label>
      <label>
        Role
        <select name="role">
          <option>user</option>
          <option>admin</option>
          <option>worker</option>
        </select>
      </label>
      <label>
        Models
        <input name="models" placeholder="all" />
      </label>
      <label>
        Requests per minute
        <input name="requests" type="number" min="1" placeholder="no limit" />
      </label>
      <label>
        Tokens per day
        <input name="tokens" type="number" min="1" placeholder="no limit" />
      </label>
      <label>
        Expires in days
        <input name="days" type="number" min="1" placeholder="never" />
      </label>
      <button class="main" type="submit">
        Create key
      </button>
    </form>
  );
}

function Secret({ made: shown }: { made: ShownKey }) {
  return (
    <section class="card" role="status">
      <p>
        The key of <strong>{shown.name}</strong>. It is shown once: copy it now.
      </p>
      <pre>{shown.key}</pre>
      <button type="button" onClick={() => void navigator.clipboard?.writeText(shown.key ?? "")}>
        Copy
      </button>{" "}
      <button type="button" onClick={() => (made.value = null)}>
        Done
      </button>
    </section>
  );
}

function Table({ rows }: { rows: ShownKey[] }) {
  if (rows.length === 0) return <p>No keys yet. Create one above.</p>;
  return (
    <div class="scroll">
      <table>
        <thead>
          <tr>
            <th>Name</th>
            <th>Role</th>
            <th>Models</th>
            <th>Limits</th>
            <th>Created</th>
            <th>State</th>
            <th />
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={row.id}>
              <td>
                {row.name} <code class="muted">{row.id}</code>
              </td>
              <td>{row.role}</td>
              <td>{row.models.join(", ") || "all"}</td>
              <td>{limits(row)}</td>
              <td>{day(row.created)}</td>
              <td>{state(row)}</td>
              <td>
                {row.revoked === null && (
                  <button type="button" onClick={() => revoke(row)}>
                    Revoke
                  </button>
                )}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function revoke(row: ShownKey): void {
  if (!confirm(`Revoke the key of ${row.name}? Its further requests are refused. This cannot be undone.`)) return;
  void attempt(async () => {
    await call("DELETE", `/v1/keys/${row.id}`);
    await load();
  });
}

function limits(row: ShownKey): string {
  const parts: [number | null, string][] = [
    [row.requests_per_minute, "requests/min"],
    [row.tokens_per_minute, "tokens/min"],
    [row.tokens_per_day, "tokens/day"],
  ];
  const shown = parts.filter(([value]) => value !== null).map(([value, unit]) => `${value!.toLocaleString()} ${unit}`);
  return shown.join(", ") || "none";
}

function state(row: ShownKey): string {
  if (row.revoked !== null) return "revoked";
  if (row.expires === null) return "valid";
  return row.expires * 1000 < Date.now() ? "expired" : `valid to ${day(row.expires)}`;
}

export function day(seconds: number): string {
  return new Date(seconds * 1000).toISOString().slice(0, 10);
}
