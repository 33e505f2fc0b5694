// The states of a view other than its content: loading, empty, failed, and old data after a lost connection.
import type { ComponentChildren } from "preact";
import { age } from "./format";
import { failure, lastEvent, now, stale } from "../state/live";
import { Icon, type IconName } from "./icon";

export function Skeleton({ heights, label = "Loading" }: { heights: ("bar" | "tall" | "fill")[]; label?: string }) {
  return (
    <div class="skeletons" role="status" aria-busy="true" aria-label={label}>
      {heights.map((height, place) => (
        <div key={place} class={`skeleton ${height}`} />
      ))}
    </div>
  );
}

export function Empty({ icon, title, children }: { icon: IconName; title: string; children: ComponentChildren }) {
  return (
    <section class="notice">
      <Icon name={icon} />
      <h2>{title}</h2>
      {children}
    </section>
  );
}

export function Failure({ title, text, retry }: { title: string; text: string; retry?: () => void }) {
  return (
    <section class="notice failed" role="alert">
      <Icon name="warning" />
      <h2>{title}</h2>
      <p>{text}</p>
      {retry && (
        <button type="button" onClick={retry}>
          <Icon name="again" /> Retry
        </button>
      )}
    </section>
  );
}

// Why an action of a view failed.
export function Problem({ text }: { text: string }) {
  if (!text) return null;
  return (
    <p class="error" role="alert">
      {text}
    </p>
  );
}

export function NoConnection() {
  return <Failure title="No connection to the gateway" text={`${failure.value} The page retries every two seconds.`} />;
}

export function StaleBanner() {
  if (!stale.value) return null;
  return (
    <p class="banner" role="alert">
      <Icon name="warning" />
      <span>
        Stale: the data below is {age(now.value - lastEvent.value)} old. {failure.value} The page reconnects by itself.
      </span>
    </p>
  );
}
