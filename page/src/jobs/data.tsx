// The data of a job: a dropped file, an earlier upload, or a data set of the hub.
import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { announce } from "../parts/announce";
import { count, percent, short } from "../parts/format";
import { Icon } from "../parts/icon";
import { type ApiError, call, type StoredFile, upload } from "../state/api";
import { useLoaded } from "../state/load";
import { inspected } from "./request";

// Larger files are checked by the trainer only.
const INSPECTED_BYTES = 20 << 20;

interface Props {
  id: string;
  label: string;
  value: string;
  example: string;
  choose: (id: string) => void;
  problem?: string;
  hub?: boolean;
}

export function Data({ id, label, value, example, choose, problem, hub }: Props) {
  const over = useSignal(false);
  const share = useSignal<number | null>(null);
  const failed = useSignal("");
  const about = useSignal("");
  const wrong = failed.value || (value ? "" : problem);
  const stop = useRef<AbortController | null>(null);
  const files = useLoaded(async () => (await call<{ data: StoredFile[] }>("GET", "/v1/files?purpose=fine-tune&limit=100")).data, [value]);
  useEffect(() => () => stop.current?.abort(), []);

  const take = async (file: File | undefined) => {
    if (!file) return;
    failed.value = about.value = "";
    choose("");
    const found = file.size <= INSPECTED_BYTES ? inspected(await file.text()) : null;
    if (found?.problem) {
      failed.value = `${file.name}: ${found.problem} One record a line, such as ${example}`;
      return;
    }
    stop.current = new AbortController();
    share.value = 0;
    try {
      const stored = await upload(file, "fine-tune", (done) => (share.value = done), stop.current.signal);
      about.value = `${file.name}${found ? `, ${count(found.records, "record")}` : ""}, ${short(file.size)} bytes`;
      choose(stored.id);
      announce(`Uploaded ${about.value}`);
    } catch (error) {
      if ((error as ApiError).code !== "stopped") failed.value = (error as Error).message;
    } finally {
      share.value = null;
    }
  };
  return (
    <div class="field">
      <span class="name" id={`${id}-label`}>
        {label}
      </span>
      <label
        class={over.value ? "drop over" : "drop"}
        onDragOver={(event) => (event.preventDefault(), (over.value = true))}
        onDragLeave={() => (over.value = false)}
        onDrop={(event) => {
          event.preventDefault();
          over.value = false;
          void take(event.dataTransfer?.files[0]);
        }}
      >
        <input
          id={id}
          type="file"
          accept=".jsonl,.json,.txt,application/jsonl"
          aria-labelledby={`${id}-label`}
          aria-describedby={`${id}-help`}
          aria-invalid={Boolean(wrong)}
          onChange={(event) => (void take(event.currentTarget.files?.[0]), (event.currentTarget.value = ""))}
        />
        <Icon name={about.value ? "check" : "upload"} />
        {share.value !== null ? (
          <span role="status">Uploading, {percent(share.value)}</span>
        ) : (
          <span>{about.value || (value ? value : "Drop a JSON Lines file here, or choose one")}</span>
        )}
        {share.value !== null && (
          <button type="button" onClick={() => stop.current?.abort()}>
            Stop
          </button>
        )}
      </label>
      <div class="row wrap">
        {Boolean(files.data?.length) && (
          <select aria-label={`Earlier upload for ${label}`} value={value} onChange={(event) => ((about.value = failed.value = ""), choose(event.currentTarget.value))}>
            <option value="">or an earlier upload</option>
            {files.data!.map((each) => (
              <option key={each.id} value={each.id}>
                {each.filename} ({short(each.bytes)} bytes)
              </option>
            ))}
          </select>
        )}
        {hub && (
          <input
            aria-label={`Data set of the hub for ${label}`}
            placeholder="or ORG/NAME of the hub"
            value={value.startsWith("file-") ? "" : value}
            onInput={(event) => ((about.value = failed.value = ""), choose(event.currentTarget.value))}
          />
        )}
      </div>
      <p id={`${id}-help`} class="muted small">
        {wrong && (
          <span class="error" role="alert">
            {wrong}{" "}
          </span>
        )}
        One record a line: <code>{example}</code>
      </p>
    </div>
  );
}
