// What the planner expects of the job in the form: memory, duration, tokens, device.
import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { bytes, seconds, short } from "../parts/format";
import { Stat } from "../parts/stat";
import { call, type Forecast, type NewJob, type Setting } from "../state/api";
import { bodyOf, type Draft } from "./request";

const PAUSE_MS = 500;
const PARTS: Record<string, string> = { working: "one layer at work", overhead: "allocator and libraries", reference: "reference model" };

export function Expected({ draft, settings }: { draft: Draft; settings: Setting[] }) {
  const found = useSignal<Forecast | null>(null);
  const problem = useSignal("");
  const busy = useSignal(false);
  const latest = useRef(0);
  const wanted = JSON.stringify(request(draft, settings));
  useEffect(() => {
    const own = ++latest.current;
    if (wanted === "null") return;
    busy.value = true;
    const timer = setTimeout(async () => {
      try {
        const forecast = await call<Forecast>("POST", "/v1/jobs/forecast", JSON.parse(wanted));
        if (own === latest.current) (found.value = forecast), (problem.value = "");
      } catch (error) {
        if (own === latest.current) (found.value = null), (problem.value = (error as Error).message);
      }
      if (own === latest.current) busy.value = false;
    }, PAUSE_MS);
    return () => clearTimeout(timer);
  }, [wanted]);
  return (
    <section class="expected" aria-label="Forecast" aria-busy={busy.value}>
      <h3>Forecast of the planner</h3>
      {wanted === "null" ? (
        <p class="muted small">Choose a base model, and correct the fields that are marked.</p>
      ) : problem.value ? (
        <p class="muted small">No forecast: {problem.value}</p>
      ) : found.value ? (
        <Shown forecast={found.value} />
      ) : (
        <div class="skeleton bar" role="status" aria-label="Computing the forecast" />
      )}
    </section>
  );
}

// The request without what a forecast does not need, or null while a field is wrong.
function request(draft: Draft, settings: Setting[]): NewJob | null {
  try {
    const body = bodyOf(draft, settings);
    return body.model && settings.length ? body : null;
  } catch {
    return null;
  }
}

function Shown({ forecast: f }: { forecast: Forecast }) {
  const tight = f.fits === false;
  return (
    <>
      <div class="stats">
        <Stat name="Memory" value={f.memory_bytes == null ? "–" : bytes(f.memory_bytes)} unit={f.device_bytes ? `of ${bytes(f.device_bytes)}` : ""} tone={tight ? "warn" : ""} />
        <Stat name="Duration" value={f.seconds == null ? "–" : seconds(f.seconds)} unit={f.seconds_from === "planner" ? "by the planner" : f.earlier ? `as ${f.earlier}` : "not known"} />
        <Stat name="Steps" value={f.steps == null ? "–" : short(f.steps)} unit={f.records == null ? "" : `${short(f.records)} records`} />
        <Stat name="Tokens" value={f.tokens == null ? "–" : short(f.tokens)} unit={f.tokens == null ? "" : "about"} />
        <Stat name="Trained" value={f.trained_parameters == null ? "–" : short(f.trained_parameters)} unit={f.parameters ? `of ${short(f.parameters)} parameters` : "parameters"} />
      </div>
      {tight && (
        <p class="error" role="alert">
          The job does not fit the device.
        </p>
      )}
      <p class="muted small">
        Device: {f.device ?? "not known"}. {f.notes.join(" ")}
      </p>
      {Object.keys(f.memory_parts).length > 0 && (
        <details class="small">
          <summary>Memory by part, and what the planner chooses</summary>
          <dl class="facts">
            {Object.entries(f.memory_parts).map(([name, value]) => (
              <div key={name}>
                <dt>{PARTS[name] ?? name}</dt>
                <dd>{bytes(value)}</dd>
              </div>
            ))}
          </dl>
          <ul>
            {f.choices.map((each) => (
              <li key={each.setting}>
                <code>
                  {each.setting} = {String(each.value)}
                </code>
                : {each.reason}
              </li>
            ))}
          </ul>
        </details>
      )}
    </>
  );
}
