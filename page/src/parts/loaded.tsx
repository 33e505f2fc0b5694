// The content of a view once its data are there, and its other states until then.
import type { ComponentChildren } from "preact";
import { failure, identity, stale } from "../state/live";
import type { Loaded } from "../state/load";
import { Empty, Failure, NoConnection, Problem, Skeleton } from "./states";

interface Props<T> {
  of: Loaded<T>;
  name: string;
  children: (data: T) => ComponentChildren;
}

export function Content<T>({ of: { data, problem, reload }, name, children }: Props<T>) {
  if (problem?.status === 403) {
    return (
      <Empty icon="key" title={`Your key has no access to ${name}`}>
        <p>{problem.message}</p>
      </Empty>
    );
  }
  if (data === null && problem) return <Failure title={`Loading ${name} failed`} text={problem.message} retry={() => void reload()} />;
  if (data === null) return failure.value && !identity.value ? <NoConnection /> : <Skeleton heights={["bar", "tall", "tall"]} />;
  return (
    <>
      <Problem text={problem?.status ? problem.message : ""} />
      <div class={stale.value ? "stale" : ""}>{children(data)}</div>
    </>
  );
}
