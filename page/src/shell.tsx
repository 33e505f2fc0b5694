// Application shell: navigation, theme, connection, sign-in, keyboard shortcuts.
import { effect, signal } from "@preact/signals";
import type { ComponentType } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { key, setKey, signInNeeded } from "./api";
import { Engines } from "./engines";
import { Keys } from "./keys";
import { connected, failure, lastEvent, restart } from "./live";
import { Playground } from "./playground";
import { go, view } from "./route";
import { Usage } from "./usage";

const VIEWS: { name: string; label: string; icon: string; shortcut: string; show: ComponentType }[] = [
  { name: "playground", label: "Playground", icon: "M8 5v14l11-7z", shortcut: "p", show: Playground },
  { name: "engines", label: "Engines", icon: "M4 5h16v5H4zM4 14h16v5H4zM7 7.5h.01M7 16.5h.01", shortcut: "e", show: Engines },
  { name: "keys", label: "Keys", icon: "M14 10a4 4 0 1 0-3.5 4L12 15.5h2V18h2v2h4v-3.5l-6-6", shortcut: "k", show: Keys },
  { name: "usage", label: "Usage", icon: "M5 20V10M12 20V4M19 20v-7", shortcut: "u", show: Usage },
];
const THEMES = ["system", "light", "dark"] as const;
const theme = signal(localStorage.getItem("rondo-theme") ?? "system");
const helping = signal(false);

effect(() => {
  document.documentElement.dataset.theme = theme.value;
  localStorage.setItem("rondo-theme", theme.value);
});

export function App() {
  useEffect(() => {
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);
  const found = VIEWS.find((each) => each.name === view.value);
  return (
    <>
      <a class="skip" href="#main">
        Skip to content
      </a>
      <nav aria-label="Views">
        <strong class="brand">Rondo</strong>
        {VIEWS.map((each) => (
          <a
            key={each.name}
            href={`#/${each.name}`}
            aria-current={each.name === view.value ? "page" : undefined}
          >
            <svg class="icon" viewBox="0 0 24 24" aria-hidden="true">
              <path d={each.icon} />
            </svg>
            {each.label}
          </a>
        ))}
      </nav>
      <div class="page">
        <header>
          <Connection />
          <span class="space" />
          <button type="button" onClick={nextTheme} title="Colours: system, light or dark">
            {theme.value}
          </button>
          {key.value && (
            <button type="button" onClick={() => (setKey(""), restart())}>
              Sign out
            </button>
          )}
          <button type="button" aria-label="Keyboard shortcuts" onClick={() => (helping.value = true)}>
            ?
          </button>
        </header>
        <main id="main" tabIndex={-1}>
          {signInNeeded.value ? <SignIn /> : found ? <found.show /> : <p>There is no view {view.value}.</p>}
        </main>
      </div>
      {helping.value && <Help />}
    </>
  );
}

function Connection() {
  const age = lastEvent.value ? Math.round((Date.now() - lastEvent.value) / 1000) : null;
  const text = connected.value ? "connected" : failure.value || "connecting";
  return (
    <span class={connected.value ? "live" : "live lost"} role="status">
      <span aria-hidden="true">●</span> {text}
      {!connected.value && age !== null ? `, data of ${age} s ago` : ""}
    </span>
  );
}

function SignIn() {
  const field = useRef<HTMLInputElement>(null);
  const wrong = key.value !== "";
  useEffect(() => field.current?.focus(), []);
  return (
    <form
      class="card narrow"
      onSubmit={(event) => {
        event.preventDefault();
        setKey(field.current!.value.trim());
        restart();
      }}
    >
      <h1>Sign in</h1>
      <label for="key">API key</label>
      <input id="key" ref={field} type="password" autocomplete="off" placeholder="rk-..." required />
      {wrong && <p class="error">The gateway refused this key. Check it, or ask an admin for a new one.</p>}
      <p class="muted">
        The admin key of a new gateway is in the file <code>admin-key</code> in RONDO_HOME. More keys:{" "}
        <code>rondo keys create NAME</code>. The key is kept until this tab is closed.
      </p>
      <button class="main" type="submit">
        Sign in
      </button>
    </form>
  );
}

function Help() {
  const rows = [
    ...VIEWS.map((each) => [`g ${each.shortcut}`, each.label]),
    ["Enter", "send"],
    ["Shift Enter", "new line"],
    ["Esc", "stop the response, close this list"],
    ["?", "this list"],
  ];
  return (
    <div class="overlay" role="dialog" aria-modal="true" aria-label="Keyboard shortcuts">
      <div class="card narrow">
        <h2>Keyboard shortcuts</h2>
        <table>
          <tbody>
            {rows.map(([keys, text]) => (
              <tr key={keys}>
                <td>
                  <kbd>{keys}</kbd>
                </td>
                <td>{text}</td>
              </tr>
            ))}
          </tbody>
        </table>
        <button type="button" ref={(one) => one?.focus()} onClick={() => (helping.value = false)}>
          Close
        </button>
      </div>
    </div>
  );
}

let before = "";
function onKey(event: KeyboardEvent): void {
  const typing = (event.target as HTMLElement).closest("input, textarea, select");
  if (event.key === "Escape") helping.value = false;
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "?") helping.value = true;
  const target = VIEWS.find((each) => each.shortcut === event.key);
  if (before === "g" && target) go(target.name);
  before = event.key;
}

function nextTheme(): void {
  const at = THEMES.indexOf(theme.value as (typeof THEMES)[number]);
  theme.value = THEMES[(at + 1) % THEMES.length]!;
}
