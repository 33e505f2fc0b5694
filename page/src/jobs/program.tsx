// The program of a job of the kind script: its command, and files for its working folder.
import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { announce } from "../parts/announce";
import { percent } from "../parts/format";
import { Icon } from "../parts/icon";
import { type ApiError, upload } from "../state/api";
import { Field } from "./field";
import type { Draft } from "./request";

interface Props {
  draft: Draft;
  set: (part: Partial<Draft>) => void;
  problemOf: (field: string) => string;
}

export function Program({ draft, set, problemOf }: Props) {
  return (
    <fieldset>
      <legend>Program</legend>
      <Field id="command" label="Command" help="Program and arguments, without a shell: quotes group words." problem={problemOf("command")}>
        {(attributes) => (
          <input {...attributes} class="mono" required autocomplete="off" spellcheck={false} placeholder="python my.py data.txt" value={draft.command} onInput={(event) => set({ command: event.currentTarget.value })} />
        )}
      </Field>
      <Files files={draft.files} choose={(files) => set({ files })} problem={problemOf("files")} />
    </fieldset>
  );
}

function Files({ files, choose, problem }: { files: Draft["files"]; choose: (files: Draft["files"]) => void; problem: string }) {
  const share = useSignal<number | null>(null);
  const failed = useSignal("");
  const stop = useRef<AbortController | null>(null);
  useEffect(() => () => stop.current?.abort(), []);
  const wrong = failed.value || problem;

  const take = async (given: File[]) => {
    failed.value = "";
    stop.current = new AbortController();
    let found = files;
    try {
      for (const file of given) {
        share.value = 0;
        const stored = await upload(file, "user_data", (done) => (share.value = done), stop.current.signal);
        found = { ...found, [file.name]: stored.id };
        choose(found);
        announce(`Uploaded ${file.name}`);
      }
    } catch (error) {
      if ((error as ApiError).code !== "stopped") failed.value = (error as Error).message;
    } finally {
      share.value = null;
    }
  };
  return (
    <div class="field">
      <span class="name" id="files-label">
        Files
      </span>
      <label
        class="drop"
        onDragOver={(event) => event.preventDefault()}
        onDrop={(event) => {
          event.preventDefault();
          void take([...(event.dataTransfer?.files ?? [])]);
        }}
      >
        <input
          id="files"
          type="file"
          multiple
          aria-labelledby="files-label"
          aria-describedby="files-help"
          aria-invalid={Boolean(wrong)}
          onChange={(event) => {
            const given = [...(event.currentTarget.files ?? [])];
            event.currentTarget.value = "";
            void take(given);
          }}
        />
        <Icon name="upload" />
        {share.value !== null ? <span role="status">Uploading, {percent(share.value)}</span> : <span>Drop files here, or choose some</span>}
        {share.value !== null && (
          <button type="button" onClick={() => stop.current?.abort()}>
            Stop
          </button>
        )}
      </label>
      {Object.keys(files).length > 0 && (
        <ul>
          {Object.keys(files).map((name) => (
            <li key={name}>
              <code>{name}</code>{" "}
              <button type="button" aria-label={`Remove ${name}`} onClick={() => choose(Object.fromEntries(Object.entries(files).filter(([each]) => each !== name)))}>
                Remove
              </button>
            </li>
          ))}
        </ul>
      )}
      <p id="files-help" class="muted small">
        {wrong && (
          <span class="error" role="alert">
            {wrong}{" "}
          </span>
        )}
        Files of the working folder, under their own names.
      </p>
    </div>
  );
}
