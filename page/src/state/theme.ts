// Colour theme: that of the system, light or dark.
import { effect, signal } from "@preact/signals";

export const THEMES = ["system", "light", "dark"] as const;
export type Theme = (typeof THEMES)[number];

const KEY = "rondo-theme";
const saved = localStorage.getItem(KEY) as Theme;
export const theme = signal<Theme>(THEMES.includes(saved) ? saved : "system");

effect(() => {
  document.documentElement.dataset.theme = theme.value;
  localStorage.setItem(KEY, theme.value);
});

export function nextTheme(): void {
  theme.value = THEMES[(THEMES.indexOf(theme.value) + 1) % THEMES.length]!;
}
