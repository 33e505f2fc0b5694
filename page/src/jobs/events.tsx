// Changes of a job's state, with their reasons.
import { Content } from "../parts/loaded";
import { age } from "../parts/format";
import { call, type Job, type JobEvent } from "../state/api";
import { now } from "../state/live";
import { useLoaded } from "../state/load";
import { ended } from "./job";

const POLL_MS = 2000;
const TONES: Record<string, string> = { error: "bad", warning: "warn", warn: "warn" };

export function Events({ job }: { job: Job }) {
  const load = async () => (await call<{ data: JobEvent[] }>("GET", `/v1/jobs/${encodeURIComponent(job.id)}/events`)).data;
  const loaded = useLoaded(load, [job.id, job.state], ended(job) ? 0 : POLL_MS);
  return (
    <Content of={loaded} name="events">
      {(events) => (
        <ol class="events">
          {events.map((event) => (
            <li key={event.id} class={TONES[event.level] ?? ""}>
              <time class="muted" dateTime={new Date(event.time * 1000).toISOString()} title={new Date(event.time * 1000).toLocaleString()}>
                {age(now.value - event.time * 1000)} ago
              </time>
              <span>{event.message}</span>
            </li>
          ))}
        </ol>
      )}
    </Content>
  );
}
