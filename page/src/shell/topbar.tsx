// Top bar: model switcher, age of the data, search, theme and key.
import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { age } from "../parts/format";
import { Icon } from "../parts/icon";
import { Picker } from "../parts/picker";
import { key, setKey, signInNeeded } from "../state/api";
import { connected, failure, identity, lastEvent, models, now, restart } from "../state/live";
import { nextTheme, theme } from "../state/theme";
import { modelChoices, palette } from "./palette";

export const SWITCHER = "switcher";
const THEME_ICONS = { system: "screen", light: "sun", dark: "moon" } as const;

export function TopBar() {
  return (
    <header class="topbar">
      {!signInNeeded.value && <Switcher />}
      <span class="space" />
      {!signInNeeded.value && <Live />}
      <button type="button" class="quiet" aria-label={`Theme: ${theme.value}`} title={`Theme: ${theme.value}`} onClick={nextTheme}>
        <Icon name={THEME_ICONS[theme.value]} />
      </button>
      {!signInNeeded.value && <KeyMenu />}
    </header>
  );
}

function Switcher() {
  return (
    <>
      <div class="switcher">
        <Icon name="search" />
        <Picker
          id={SWITCHER}
          label="Switch the model"
          placeholder={models.value?.length ? "Switch the model" : "No model is ready"}
          choices={modelChoices()}
          folded
          done={() => undefined}
        />
        <kbd aria-hidden="true">/</kbd>
      </div>
      <button type="button" class="quiet" aria-label="Command palette, Ctrl K" title="Command palette" onClick={() => (palette.value = true)}>
        <kbd>Ctrl K</kbd>
      </button>
    </>
  );
}

function Live() {
  const heard = lastEvent.value ? `${age(now.value - lastEvent.value)} ago` : "";
  if (connected.value) {
    return (
      <span class="live" title={`Connected. Latest event: ${heard}.`}>
        <span class="dot" aria-hidden="true" /> Live <span class="muted">{heard}</span>
      </span>
    );
  }
  return (
    <span class={failure.value ? "live lost" : "live"} title={failure.value}>
      <span class="dot" aria-hidden="true" /> {failure.value ? "Offline" : "Connecting"} <span class="muted">{heard}</span>
    </span>
  );
}

function KeyMenu() {
  const open = useSignal(false);
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const leave = (event: Event) => {
      if (!box.current?.contains(event.target as Node)) open.value = false;
    };
    document.addEventListener("pointerdown", leave);
    document.addEventListener("focusin", leave);
    return () => {
      document.removeEventListener("pointerdown", leave);
      document.removeEventListener("focusin", leave);
    };
  }, []);
  const own = identity.value;
  return (
    <div class="menu" ref={box} onKeyDown={(event) => event.key === "Escape" && (open.value = false)}>
      <button
        type="button"
        class="quiet"
        aria-label={`Key: ${own?.name ?? "unknown"}`}
        aria-expanded={open.value}
        onClick={() => (open.value = !open.value)}
      >
        <Icon name="key" /> <span class="name">{own?.name}</span>
      </button>
      {open.value && (
        <div class="popover">
          {own && (
            <p>
              <strong>{own.name}</strong>
              <br />
              <span class="muted">
                Role {own.role}, models: {own.models.join(", ") || "all"}
              </span>
            </p>
          )}
          <a href="#/usage" onClick={() => (open.value = false)}>
            Usage
          </a>
          {key.value ? (
            <button type="button" onClick={() => signOut()}>
              Sign out
            </button>
          ) : (
            <button type="button" onClick={() => (signInNeeded.value = true)}>
              Sign in with a key
            </button>
          )}
        </div>
      )}
    </div>
  );
}

function signOut(): void {
  setKey("");
  restart();
}
