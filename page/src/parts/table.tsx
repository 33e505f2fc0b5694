// A table that sorts by its columns, copies itself as CSV, hides columns, and draws only visible rows when it is long.
import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useRef } from "preact/hooks";
import { Copy } from "./copy";
import { Icon } from "./icon";

export interface ColumnOf<Row> {
  name: string;
  // For sorting and CSV.
  value: (row: Row) => string | number;
  show?: (row: Row) => ComponentChildren;
  number?: boolean;
  // A column of buttons is neither sorted nor copied.
  actions?: boolean;
}

interface Props<Row> {
  label: string;
  columns: ColumnOf<Row>[];
  rows: Row[];
  id: (row: Row) => string;
  // Index of the column that sorts at first; descending where `down`.
  sort?: number;
  down?: boolean;
  tools?: ComponentChildren;
}

const VIRTUAL_ROWS = 200;
const ROW_HEIGHT = 37;
const MARGIN_ROWS = 20;

export function Table<Row>({ label, columns, rows, id, sort = 0, down = false, tools }: Props<Row>) {
  const by = useSignal(sort);
  const descending = useSignal(down);
  const hidden = useSignal<string[]>([]);
  const top = useSignal(0);
  const box = useRef<HTMLDivElement>(null);
  const shown = columns.filter((each) => !hidden.value.includes(each.name));
  const sorted = sortedRows(rows, columns[by.value]!, descending.value);
  const long = rows.length > VIRTUAL_ROWS;
  const first = long ? Math.max(0, Math.floor(top.value / ROW_HEIGHT) - MARGIN_ROWS) : 0;
  const height = long ? Math.ceil((box.current?.clientHeight ?? 800) / ROW_HEIGHT) + 2 * MARGIN_ROWS : sorted.length;
  const last = Math.min(sorted.length, first + height);
  const choose = (column: ColumnOf<Row>) => {
    const place = columns.indexOf(column);
    descending.value = by.value === place ? !descending.value : Boolean(column.number);
    by.value = place;
  };
  return (
    <section class="table" aria-label={label}>
      <div class="row">
        {tools}
        <span class="space" />
        <Columns columns={columns} hidden={hidden.value} set={(names) => (hidden.value = names)} />
        <Copy label="Copy CSV" text={() => csv(shown, sorted)} />
      </div>
      <div
        class={long ? "scroll long" : "scroll"}
        ref={box}
        tabIndex={0}
        role="group"
        aria-label={`Rows of ${label}`}
        onScroll={(event) => long && (top.value = event.currentTarget.scrollTop)}
      >
        <table aria-rowcount={long ? rows.length + 1 : undefined}>
          <thead>
            <tr>
              {shown.map((column) => (
                <th key={column.name} class={column.number ? "number" : ""} aria-sort={sortOf(columns.indexOf(column), by.value, descending.value)}>
                  {column.actions ? (
                    <span class="hidden">{column.name}</span>
                  ) : (
                    <button type="button" onClick={() => choose(column)}>
                      {column.name}
                    </button>
                  )}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            <Spacer rows={first} columns={shown.length} />
            {sorted.slice(first, last).map((row) => (
              <tr key={id(row)}>
                {shown.map((column) => (
                  <td key={column.name} class={column.number ? "number" : ""}>
                    {column.show ? column.show(row) : cell(column.value(row))}
                  </td>
                ))}
              </tr>
            ))}
            <Spacer rows={sorted.length - last} columns={shown.length} />
          </tbody>
        </table>
      </div>
    </section>
  );
}

// Takes the place of rows that are not drawn.
function Spacer({ rows, columns }: { rows: number; columns: number }) {
  if (!rows) return null;
  return (
    <tr aria-hidden="true">
      <td colSpan={columns} class="spacer" style={{ height: `${rows * ROW_HEIGHT}px` }} />
    </tr>
  );
}

function Columns<Row>({ columns, hidden, set }: { columns: ColumnOf<Row>[]; hidden: string[]; set: (names: string[]) => void }) {
  const toggle = (name: string) => set(hidden.includes(name) ? hidden.filter((each) => each !== name) : [...hidden, name]);
  return (
    <details class="menu">
      <summary>
        Columns <Icon name="down" />
      </summary>
      <div class="popover">
        {columns
          .filter((each) => !each.actions)
          .map(({ name }) => (
            <label key={name} class="check">
              <input type="checkbox" checked={!hidden.includes(name)} onChange={() => toggle(name)} />
              {name}
            </label>
          ))}
      </div>
    </details>
  );
}

function sortOf(place: number, by: number, descending: boolean): "ascending" | "descending" | undefined {
  if (place !== by) return undefined;
  return descending ? "descending" : "ascending";
}

function sortedRows<Row>(rows: Row[], column: ColumnOf<Row>, descending: boolean): Row[] {
  const sign = descending ? -1 : 1;
  return [...rows].sort((one, other) => {
    const [a, b] = [column.value(one), column.value(other)];
    return sign * (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
  });
}

function cell(value: string | number): string {
  return typeof value === "number" ? value.toLocaleString("en") : value;
}

export function csv<Row>(columns: ColumnOf<Row>[], rows: Row[]): string {
  const quoted = (value: string | number) => (/[",\n]/.test(String(value)) ? `"${String(value).replaceAll('"', '""')}"` : String(value));
  const data = columns.filter((each) => !each.actions);
  const lines = [data.map((each) => quoted(each.name)), ...rows.map((row) => data.map((each) => quoted(each.value(row))))];
  return lines.map((line) => line.join(",")).join("\n");
}
