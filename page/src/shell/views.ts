// The views of the page, each loaded when it is first shown.
import type { ComponentType } from "preact";
import type { IconName } from "../parts/icon";

export interface View {
  name: string;
  label: string;
  icon: IconName;
  // Hidden from the bar of narrow windows, whose last entry opens the palette.
  seldom?: boolean;
  // The key after `g`.
  shortcut: string;
  load: () => Promise<{ default: ComponentType }>;
}

export const VIEWS: View[] = [
  { name: "playground", label: "Playground", icon: "play", shortcut: "p", load: () => import("../playground/view") },
  { name: "jobs", label: "Jobs", icon: "train", shortcut: "j", load: () => import("../jobs/view") },
  { name: "rl", label: "RL", icon: "loop", shortcut: "l", seldom: true, load: () => import("../rl/view") },
  { name: "models", label: "Models", icon: "model", shortcut: "m", load: () => import("../models/view") },
  { name: "evals", label: "Evals", icon: "check", shortcut: "v", seldom: true, load: () => import("../evals/view") },
  { name: "queue", label: "Queue", icon: "queue", shortcut: "q", load: () => import("../queue/view") },
  { name: "responses", label: "Responses", icon: "chat", shortcut: "r", seldom: true, load: () => import("../responses/view") },
  { name: "engines", label: "Engines", icon: "server", shortcut: "e", load: () => import("../engines/view") },
  { name: "keys", label: "Keys", icon: "key", shortcut: "k", seldom: true, load: () => import("../keys/view") },
  { name: "usage", label: "Usage", icon: "chart", shortcut: "u", seldom: true, load: () => import("../usage/view") },
];
