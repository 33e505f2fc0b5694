// One sampled answer; opened, its tokens are coloured by advantage, log-probability or weight version.
import { useSignal } from "@preact/signals";
import { significant } from "../parts/format";
import { Failure, Skeleton } from "../parts/states";
import { Tabs } from "../parts/tabs";
import { call } from "../state/api";
import { useLoaded } from "../state/load";
import { params } from "../state/route";
import type { Piece, Rollout, WholeRollout } from "./rollout";

const COLOURS = ["Advantage", "Log-probability", "Version"] as const;
type Colour = (typeof COLOURS)[number];
// Nats at which a token counts as very unlikely, and advantages at which a colour is full.
const UNLIKELY = 5;
const FULL = 2;

export function Sample({ rollout }: { rollout: Rollout }) {
  const open = useSignal(false);
  const good = (rollout.advantage ?? 0) > 0;
  return (
    <li>
      <details onToggle={(event) => (open.value = event.currentTarget.open)}>
        <summary>
          <span class="reward">
            <span class="hidden">Reward </span>
            {rollout.outcome && rollout.outcome !== "ok" ? <span class="chip bad">{rollout.outcome}</span> : significant(rollout.reward)}
          </span>
          <span class={`advantage ${rollout.advantage === null ? "muted" : good ? "good" : rollout.advantage < 0 ? "bad" : "muted"}`} title="Advantage: how much better than the other answers to the prompt">
            {rollout.advantage === null ? "not trained on" : `${good ? "+" : ""}${significant(rollout.advantage)}`}
          </span>
          <span class="answer" dir="auto">
            {rollout.text || "(empty)"}
          </span>
          <span class="muted small">
            {rollout.sampled} tokens{rollout.finish_reason === "length" && ", cut off"}
          </span>
        </summary>
        {open.value && <Whole rollout={rollout} />}
      </details>
    </li>
  );
}

function Whole({ rollout }: { rollout: Rollout }) {
  const job = params.value.get("job") ?? "";
  const loaded = useLoaded(() => call<WholeRollout>("GET", `/v1/jobs/${encodeURIComponent(job)}/rollouts/${rollout.id}`), [rollout.id]);
  const colour = useSignal<Colour>("Advantage");
  if (loaded.problem && !loaded.data) return <Failure title="Loading the sample failed" text={loaded.problem.message} retry={() => void loaded.reload()} />;
  if (!loaded.data) return <Skeleton heights={["bar", "bar"]} label="Loading the sample" />;
  const { messages, pieces, text, detail, parts, versions } = loaded.data;
  const readable = pieces.some((each) => each.tokens);
  return (
    <div class="whole">
      {messages.map((each, place) => (
        <p key={place} class="text" dir="auto">
          <span class="muted small">{each.role}</span>
          <br />
          {each.content}
        </p>
      ))}
      {readable ? (
        <>
          <div class="row wrap">
            <Tabs label="Colour of tokens" names={COLOURS} chosen={colour.value} choose={(name) => (colour.value = name as Colour)} />
            <span class="muted small">{EXPLAINED[colour.value]}</span>
          </div>
          {pieces.map((piece, place) => (
            <Tokens key={place} piece={piece} colour={colour.value} first={versions[0] ?? 0} />
          ))}
        </>
      ) : (
        <p class="text" dir="auto">
          {text}
        </p>
      )}
      <dl class="facts small">
        {Object.entries(parts).map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{significant(value)}</dd>
          </div>
        ))}
        <div>
          <dt>weights</dt>
          <dd>version {[...new Set(versions)].join(" to ")}</dd>
        </div>
        <div>
          <dt>ended by</dt>
          <dd>{rollout.finish_reason}</dd>
        </div>
        {detail && (
          <div>
            <dt>grader</dt>
            <dd class="text">{detail}</dd>
          </div>
        )}
      </dl>
    </div>
  );
}

const EXPLAINED: Record<Colour, string> = {
  Advantage: "Blue tokens are made more likely, orange ones less likely.",
  "Log-probability": "The darker, the less likely the token was when it was sampled.",
  Version: "Tokens of newer weights than the first token are marked.",
};

function Tokens({ piece, colour, first }: { piece: Piece; colour: Colour; first: number }) {
  const shade = (place: number) => (element: HTMLElement | null) => {
    if (element) element.style.setProperty("--share", `${Math.round(100 * share(piece, place, colour, first))}%`);
  };
  return (
    <p class="text tokenized mono" dir="auto">
      {piece.token_ids.map((id, place) => (
        <span key={place} ref={shade(place)} class={piece.sampled[place] ? tone(piece, place, colour) : "given"} title={titleOf(piece, place)}>
          {piece.tokens?.[place] ?? `[${id}]`}
        </span>
      ))}
    </p>
  );
}

function share(piece: Piece, place: number, colour: Colour, first: number): number {
  if (colour === "Advantage") return Math.min(1, Math.abs(piece.advantages[place] ?? 0) / FULL);
  if (colour === "Log-probability") return Math.min(1, -(piece.logprobs[place] ?? 0) / UNLIKELY);
  return piece.versions[place] === first ? 0 : 1;
}

function tone(piece: Piece, place: number, colour: Colour): string {
  return colour === "Advantage" && (piece.advantages[place] ?? 0) < 0 ? "less" : "more";
}

function titleOf(piece: Piece, place: number): string {
  if (!piece.sampled[place]) return "given, not sampled";
  return `log-probability ${significant(piece.logprobs[place])}, advantage ${significant(piece.advantages[place])}, version ${piece.versions[place]}`;
}
