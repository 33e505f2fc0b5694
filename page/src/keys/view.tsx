// API keys: list, create, revoke. A key without admin rights shows its own.
import { useSignal } from "@preact/signals";
import { confirmed } from "../parts/confirm";
import { day } from "../parts/format";
import { Icon } from "../parts/icon";
import { Content } from "../parts/loaded";
import { Problem } from "../parts/states";
import { type ColumnOf, Table } from "../parts/table";
import { call, type ShownKey } from "../state/api";
import { admin, identity, stale } from "../state/live";
import { useLoaded } from "../state/load";
import { params, setParams } from "../state/route";
import { Create } from "./create";
import "./style.css";

export default function Keys() {
  const revoked = useSignal(false);
  const problem = useSignal("");
  const loaded = useLoaded(load);
  const close = () => {
    setParams({ create: "" });
    void loaded.reload();
  };
  const revoke = async (row: ShownKey) => {
    const own = row.id === identity.value?.id ? " This page uses this key and will ask for another one." : "";
    const text = `Its further requests are refused at once. This cannot be undone.${own}`;
    if (!(await confirmed(`Revoke the key of ${row.name}?`, text, "Revoke"))) return;
    problem.value = "";
    try {
      await call("DELETE", `/v1/keys/${row.id}`);
    } catch (error) {
      problem.value = (error as Error).message;
    }
    await loaded.reload();
  };
  return (
    <>
      <div class="row title">
        <h1>API keys</h1>
        <span class="space" />
        {admin.value && (
          <button type="button" class="main" disabled={stale.value} onClick={() => setParams({ create: "1" })}>
            <Icon name="plus" /> Create key
          </button>
        )}
      </div>
      {identity.value && !admin.value && (
        <p class="muted">This is your key. An admin's key lists, creates and revokes all keys.</p>
      )}
      <Problem text={problem.value} />
      <Content of={loaded} name="keys">
        {(keys) => (
          <Table
            label="Keys"
            columns={columns((row) => void revoke(row))}
            rows={keys.filter((row) => revoked.value || row.revoked === null)}
            id={(row) => row.id}
            sort={5}
            down
            tools={
              admin.value && (
                <label class="check">
                  <input type="checkbox" checked={revoked.value} onChange={(event) => (revoked.value = event.currentTarget.checked)} />
                  Show revoked keys
                </label>
              )
            }
          />
        )}
      </Content>
      {params.value.has("create") && admin.value && <Create close={close} />}
    </>
  );
}

async function load(): Promise<ShownKey[]> {
  if (!admin.value) return [await call<ShownKey>("GET", "/v1/key")];
  return (await call<{ data: ShownKey[] }>("GET", "/v1/keys")).data;
}

function columns(revoke: (row: ShownKey) => void): ColumnOf<ShownKey>[] {
  return [
    {
      name: "Name",
      value: (row) => row.name,
      show: (row) => (
        <>
          {row.name} <code class="muted">{row.id}</code>
        </>
      ),
    },
    { name: "Role", value: (row) => row.role },
    { name: "Scopes", value: (row) => (row.role === "admin" ? "all" : row.scopes.join(", ")) },
    { name: "Models", value: (row) => row.models.join(", ") || "all" },
    { name: "Limits", value: limits },
    { name: "Created", value: (row) => day(row.created) },
    { name: "State", value: state, show: (row) => <span class={`chip ${TONES[state(row).split(" ")[0]!]}`}>{state(row)}</span> },
    {
      name: "Actions",
      value: () => "",
      actions: true,
      show: (row) =>
        row.revoked === null &&
        admin.value && (
          <button type="button" disabled={stale.value} aria-label={`Revoke ${row.name}`} onClick={() => revoke(row)}>
            Revoke
          </button>
        ),
    },
  ];
}

const TONES: Record<string, string> = { valid: "good", expired: "warn", revoked: "" };

function limits(row: ShownKey): string {
  const parts: [number | null, string][] = [
    [row.requests_per_minute, "requests/min"],
    [row.tokens_per_minute, "tokens/min"],
    [row.tokens_per_day, "tokens/day"],
  ];
  return (
    parts
      .filter(([value]) => value !== null)
      .map(([value, unit]) => `${value!.toLocaleString("en")} ${unit}`)
      .join(", ") || "none"
  );
}

function state(row: ShownKey): string {
  if (row.revoked !== null) return `revoked ${day(row.revoked)}`;
  if (row.expires === null) return "valid";
  return row.expires * 1000 < Date.now() ? `expired ${day(row.expires)}` : `valid to ${day(row.expires)}`;
}
