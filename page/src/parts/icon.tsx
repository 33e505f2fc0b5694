// Icons, drawn with lines on a field of 24 by 24.
const PATHS = {
  play: "M6 4l14 8-14 8z",
  server: "M3 4h18v7H3zM3 13h18v7H3zM7 7.5h.01M7 16.5h.01",
  key: "M15.5 3a5.5 5.5 0 0 0-5.2 7.3L3 17.6V21h3.4v-2.6H9v-2.6h2.4l1.3-1.3A5.5 5.5 0 1 0 15.5 3zM16.5 7.5h.01",
  chart: "M4 20V10M10 20V4M16 20v-8M21 20H3",
  train: "M3 20h18M4 16c4 0 4-10 8-10s3 6 8 6",
  loop: "M17 2l4 4-4 4M3 11V9a3 3 0 0 1 3-3h15M7 22l-4-4 4-4M21 13v2a3 3 0 0 1-3 3H3",
  model: "M12 3l8 4.5v9L12 21l-8-4.5v-9zM12 12l8-4.5M12 12v9M12 12L4 7.5",
  queue: "M4 6h16M4 12h16M4 18h10",
  chat: "M4 5h16v11H9l-5 4z",
  more: "M5 12h.01M12 12h.01M19 12h.01",
  search: "M11 4a7 7 0 1 0 0 14 7 7 0 0 0 0-14zM21 21l-5-5",
  sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2v2M12 20v2M4.9 4.9l1.4 1.4M17.7 17.7l1.4 1.4M2 12h2M20 12h2M4.9 19.1l1.4-1.4M17.7 6.3l1.4-1.4",
  moon: "M20 14.5A8 8 0 0 1 9.5 4a8 8 0 1 0 10.5 10.5z",
  screen: "M3 4h18v12H3zM8 20h8M12 16v4",
  help: "M9 9a3 3 0 1 1 4.5 2.6c-1 .6-1.5 1.2-1.5 2.4M12 17.5h.01M12 2a10 10 0 1 0 0 20 10 10 0 0 0 0-20z",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  check: "M4 12.5l5 5L20 6.5",
  edit: "M4 20h4L20 8l-4-4L4 16zM14 6l4 4",
  again: "M4 12a8 8 0 1 0 2.5-5.8M4 4v4.5h4.5",
  close: "M5 5l14 14M19 5L5 19",
  plus: "M12 4v16M4 12h16",
  sliders: "M4 7h10M18 7h2M4 17h2M10 17h10M14 4v6M6 14v6",
  share: "M12 15V3M7 8l5-5 5 5M4 14v7h16v-7",
  trash: "M4 6h16M9 6V3h6v3M6 6l1 15h10l1-15",
  send: "M4 12h15M13 6l6 6-6 6",
  stop: "M6 6h12v12H6z",
  down: "M6 9l6 6 6-6",
  upload: "M12 16V4M7 9l5-5 5 5M4 20h16",
  warning: "M12 3L2 20h20zM12 10v4M12 17h.01",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name }: { name: IconName }) {
  return (
    <svg class="icon" viewBox="0 0 24 24" aria-hidden="true">
      <path d={PATHS[name]} />
    </svg>
  );
}
