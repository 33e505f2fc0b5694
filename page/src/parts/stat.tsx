// One figure with its name and unit.
interface Props {
  name: string;
  value: string;
  unit: string;
  tone?: string;
}

export function Stat({ name, value, unit, tone }: Props) {
  return (
    <div class={`stat ${tone ?? ""}`}>
      <span class="muted">{name}</span>
      <span>
        <strong>{value}</strong> <span class="muted">{unit}</span>
      </span>
    </div>
  );
}
