// How much of something is done, as a bar and in numbers.
import { short } from "./format";

interface Props {
  label: string;
  done: number;
  failed?: number;
  total: number;
}

export function Progress({ label, done, failed = 0, total }: Props) {
  const width = (share: number) => (element: HTMLElement | null) => {
    if (element) element.style.width = `${(100 * share).toFixed(2)}%`;
  };
  const all = Math.max(1, total);
  return (
    <span class="progress" role="progressbar" aria-label={label} aria-valuemin={0} aria-valuemax={total} aria-valuenow={done + failed}>
      <span class="track">
        <span ref={width(done / all)} />
        <span class="failed" ref={width(failed / all)} />
      </span>
      <span>
        {short(done + failed)} of {short(total)}
        {failed > 0 && <span class="bad"> ({short(failed)} failed)</span>}
      </span>
    </span>
  );
}
