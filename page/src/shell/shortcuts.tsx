// Keyboard shortcuts of the whole page, and their list.
import { signal } from "@preact/signals";
import { Dialog } from "../parts/dialog";
import { signInNeeded } from "../state/api";
import { go } from "../state/route";
import { palette } from "./palette";
import { SWITCHER } from "./topbar";
import { VIEWS } from "./views";

export const shortcuts = signal(false);

const PREFIX_MS = 1500;
let prefixed = 0;

export function watchKeys(): () => void {
  addEventListener("keydown", onKey);
  return () => removeEventListener("keydown", onKey);
}

function onKey(event: KeyboardEvent): void {
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
    event.preventDefault();
    if (!signInNeeded.value) palette.value = !palette.value;
    return;
  }
  const typing = (event.target as HTMLElement).closest("input, textarea, select, dialog");
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "?") shortcuts.value = true;
  if (signInNeeded.value) return;
  if (event.key === "/") {
    event.preventDefault();
    document.getElementById(SWITCHER)?.focus();
  }
  const target = VIEWS.find((each) => each.shortcut === event.key);
  if (target && Date.now() - prefixed < PREFIX_MS) go(target.name);
  prefixed = event.key === "g" ? Date.now() : 0;
}

export function Shortcuts() {
  const groups: [string, [string, string][]][] = [
    ["Everywhere", [
      ["Ctrl K", "Command palette"],
      ["/", "Switch the model"],
      ["?", "This list"],
      ["Esc", "Close"],
    ]],
    ["Views", VIEWS.map((each): [string, string] => [`g ${each.shortcut}`, each.label])],
    ["Playground", [
      ["Enter", "Send"],
      ["Shift Enter", "Line break"],
      ["Esc", "Stop the response"],
      ["← →", "Previous or next token, with log-probabilities"],
    ]],
    ["Jobs", [["← →", "Previous or next step of the rollouts, on the slider"]]],
  ];
  return (
    <Dialog title="Keyboard shortcuts" close={() => (shortcuts.value = false)}>
      {groups.map(([name, rows]) => (
        <section key={name}>
          <h3>{name}</h3>
          <dl class="shortcuts">
            {rows.map(([keys, text]) => (
              <div key={keys}>
                <dt>{text}</dt>
                <dd>
                  {keys.split(" ").map((each) => (
                    <kbd key={each}>{each}</kbd>
                  ))}
                </dd>
              </div>
            ))}
          </dl>
        </section>
      ))}
    </Dialog>
  );
}
