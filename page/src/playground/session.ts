// State of the playground: one chat per model, and the parameters. The URL holds models and parameters.
import { effect, signal } from "@preact/signals";
import { models } from "../state/live";
import { params, setParams, view } from "../state/route";
import { Chat } from "./chat";
import { fromParams, type Settings, toParams } from "./settings";

export const MOST_CHATS = 3;
export const settings = signal<Settings>(fromParams(params.value));
export const chats = signal<Chat[]>([]);

// Browsers limit how often a page may change its URL.
const WRITE_MS = 300;
let write: ReturnType<typeof setTimeout> | undefined;

effect(() => {
  if (view.value !== "playground") return;
  const named = params.value.getAll("model").slice(0, MOST_CHATS);
  const wanted = named.length ? named : (models.value ?? []).slice(0, 1);
  const old = chats.peek();
  if (wanted.join("\n") !== old.map((chat) => chat.model.peek()).join("\n")) {
    old.slice(wanted.length).forEach((chat) => chat.stop());
    chats.value = wanted.map((model, place) => {
      const chat = old[place] ?? new Chat(signal(model));
      chat.model.value = model;
      return chat;
    });
  }
  if (write === undefined) settings.value = fromParams(params.value);
});

export function change(part: Partial<Settings>): void {
  settings.value = { ...settings.value, ...part };
  clearTimeout(write);
  write = setTimeout(() => {
    write = undefined;
    if (view.value === "playground") setParams(toParams(settings.value));
  }, WRITE_MS);
}

export function useModels(names: string[]): void {
  setParams({ model: names });
}

export function removeChat(place: number): void {
  chats.value[place]?.stop();
  chats.value = chats.value.filter((_, at) => at !== place);
  useModels(chats.value.map((chat) => chat.model.value));
}

export function addChat(): void {
  const used = chats.value.map((chat) => chat.model.value);
  const known = models.value ?? [];
  useModels([...used, known.find((each) => !used.includes(each)) ?? used[0] ?? ""]);
}

// A corrected message of the user goes to every chat that has the same message there.
export function editEverywhere(source: Chat, place: number, text: string): void {
  const old = source.turns.value[place];
  for (const chat of chats.value) {
    const other = chat.turns.value[place];
    const equal = old?.role === "user" && other?.role === "user" && other.content === old.content;
    if (chat === source || equal) void chat.edit(place, text, settings.value);
  }
}
