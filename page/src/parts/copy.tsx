// A button that copies a text, and says that it did.
import { useSignal } from "@preact/signals";
import { announce } from "./announce";
import { Icon } from "./icon";

const SHOWN_MS = 1500;

export function Copy({ text, label = "Copy", quiet }: { text: string | (() => string); label?: string; quiet?: boolean }) {
  const state = useSignal("");
  const copy = async () => {
    const done = await toClipboard(typeof text === "string" ? text : text());
    state.value = done ? "Copied" : "Select the text to copy it";
    announce(state.value);
    setTimeout(() => (state.value = ""), SHOWN_MS);
  };
  return (
    <button type="button" class={quiet ? "quiet" : ""} aria-label={quiet ? label : undefined} title={quiet ? label : undefined} onClick={copy}>
      <Icon name={state.value === "Copied" ? "check" : "copy"} /> {quiet ? state.value : state.value || label}
    </button>
  );
}

// The clipboard's API needs HTTPS or a loopback address; elsewhere a selection is copied.
async function toClipboard(text: string): Promise<boolean> {
  if (navigator.clipboard) {
    return navigator.clipboard.writeText(text).then(
      () => true,
      () => false,
    );
  }
  const field = document.createElement("textarea");
  field.value = text;
  (document.querySelector("dialog[open]") ?? document.body).append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  return done;
}

export function download(name: string, text: string, type = "text/plain"): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}
