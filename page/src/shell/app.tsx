// Application shell: navigation, top bar, the view, and what lies above them.
import { useEffect, useRef } from "preact/hooks";
import { Announcer } from "../parts/announce";
import { Confirmation } from "../parts/confirm";
import { Icon } from "../parts/icon";
import { Empty, StaleBanner } from "../parts/states";
import { signInNeeded } from "../state/api";
import { link, params, view } from "../state/route";
import { Lazy } from "./lazy";
import { Palette, palette } from "./palette";
import { Shortcuts, shortcuts, watchKeys } from "./shortcuts";
import { SignIn } from "./signin";
import { TopBar } from "./topbar";
import { VIEWS } from "./views";

export function App() {
  const main = useRef<HTMLElement>(null);
  const shown = useRef(view.value);
  const found = VIEWS.find((each) => each.name === view.value);
  useEffect(watchKeys, []);
  useEffect(() => {
    document.title = `${found?.label ?? "Unknown view"} · Rondo`;
    if (shown.current !== view.value) main.current?.focus();
    shown.current = view.value;
  }, [view.value]);
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => (event.preventDefault(), main.current?.focus())}>
        Skip to content
      </a>
      <Rail />
      <div class="page">
        <TopBar />
        <main id="main" ref={main} tabIndex={-1}>
          {signInNeeded.value ? (
            <SignIn />
          ) : (
            <>
              <StaleBanner />
              {found ? <Lazy view={found} /> : <Unknown name={view.value} />}
            </>
          )}
        </main>
      </div>
      {palette.value && <Palette />}
      {shortcuts.value && <Shortcuts />}
      <Confirmation />
      <Announcer />
    </>
  );
}

function Rail() {
  void params.value;
  return (
    <nav class="rail" aria-label="Views">
      <a class="brand" href="#/playground" aria-label="Rondo, to the playground">
        <svg viewBox="0 0 24 24" aria-hidden="true">
          <path d="M12 3a9 9 0 1 0 9 9M12 7.5A4.5 4.5 0 1 0 16.5 12" />
        </svg>
        <span>Rondo</span>
      </a>
      {VIEWS.map((each) => (
        <a
          key={each.name}
          class={each.seldom ? "seldom" : ""}
          href={link(each.name)}
          title={`${each.label} (g ${each.shortcut})`}
          aria-current={each.name === view.value ? "page" : undefined}
        >
          <Icon name={each.icon} />
          <span>{each.label}</span>
        </a>
      ))}
      <button type="button" class="quiet more" onClick={() => (palette.value = true)}>
        <Icon name="more" />
        <span>More</span>
      </button>
      <span class="space" />
      <button type="button" class="quiet help" onClick={() => (shortcuts.value = true)}>
        <Icon name="help" />
        <span>Shortcuts</span>
        <kbd>?</kbd>
      </button>
    </nav>
  );
}

function Unknown({ name }: { name: string }) {
  return (
    <>
      <h1 class="hidden">Unknown view</h1>
      <Empty icon="search" title={`There is no view “${name}”`}>
        <p>
          The link may be mistyped or of another version. Continue in the <a href="#/playground">playground</a>.
        </p>
      </Empty>
    </>
  );
}
