// Changes of state for screen readers.
import { signal } from "@preact/signals";

const text = signal("");

export function announce(message: string): void {
  text.value = message;
}

export function Announcer() {
  return (
    <p class="hidden" role="status">
      {text.value}
    </p>
  );
}
