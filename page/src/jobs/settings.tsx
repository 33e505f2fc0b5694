// What a job was submitted with.
import { Copy } from "../parts/copy";
import { Table } from "../parts/table";
import type { Job } from "../state/api";
import { nameOf } from "../state/names";

export interface Entry {
  name: string;
  value: string;
}

export function entries(job: Job): Entry[] {
  const resources = Object.entries(job.resources).map(([name, value]) => [`resources.${name}`, value] as const);
  return [["kind", job.kind] as const, ["model", job.model] as const, ...Object.entries(job.settings), ...resources].map(([name, value]) => ({
    name,
    value: typeof value === "string" ? value : JSON.stringify(value),
  }));
}

export function Settings({ job }: { job: Job }) {
  const rows = [
    ...entries(job),
    { name: "id", value: job.id },
    { name: "hash", value: job.hash ?? "not known yet" },
    { name: "owner", value: nameOf(job.owner) },
    { name: "submitted", value: new Date(job.created * 1000).toLocaleString() },
  ];
  return (
    <>
      <p class="muted">Settings that were given; all others have their defaults.</p>
      <Table
        label="Settings"
        columns={[
          { name: "Setting", value: (row) => row.name, show: (row) => <code>{row.name}</code> },
          { name: "Value", value: (row) => row.value, show: (row) => <code class="wide">{row.value}</code> },
        ]}
        rows={rows}
        id={(row) => row.name}
        tools={<Copy label="Copy JSON" text={() => JSON.stringify({ kind: job.kind, model: job.model, settings: job.settings, resources: job.resources }, null, 2)} />}
      />
    </>
  );
}
