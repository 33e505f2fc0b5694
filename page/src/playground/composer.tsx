// The field for the next message.
import { signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { Icon } from "../parts/icon";
import { chats, settings } from "./session";

export const draft = signal("");

export function Composer() {
  const field = useRef<HTMLTextAreaElement>(null);
  const busy = chats.value.some((chat) => chat.busy.value);
  const stop = () => chats.value.forEach((chat) => chat.stop());
  const say = () => {
    const text = draft.value.trim();
    if (!text || busy) return;
    draft.value = "";
    for (const chat of chats.value) void chat.say(text, settings.value);
  };
  useEffect(() => {
    if (draft.value) field.current?.focus();
  }, [draft.value]);
  return (
    <form class="composer" onSubmit={(event) => (event.preventDefault(), say())}>
      <textarea
        ref={field}
        rows={1}
        dir="auto"
        aria-label="Message"
        placeholder="Message"
        value={draft.value}
        onInput={(event) => (draft.value = event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
            event.preventDefault();
            say();
          }
          if (event.key === "Escape") stop();
        }}
      />
      <span class="muted small hint">
        <kbd>Enter</kbd> sends, <kbd>Shift Enter</kbd> breaks the line
      </span>
      {busy ? (
        <button type="button" class="main" onClick={stop}>
          <Icon name="stop" /> Stop
        </button>
      ) : (
        <button type="submit" class="main" disabled={!draft.value.trim()}>
          <Icon name="send" /> Send
        </button>
      )}
    </form>
  );
}
