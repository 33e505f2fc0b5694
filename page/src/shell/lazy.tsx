// A view whose code is loaded when it is first shown.
import { useSignal } from "@preact/signals";
import type { ComponentType } from "preact";
import { useEffect } from "preact/hooks";
import { Failure, Skeleton } from "../parts/states";
import type { View } from "./views";

const loaded = new Map<string, ComponentType>();

export function Lazy({ view }: { view: View }) {
  const arrived = useSignal(0);
  const failed = useSignal(false);
  const Show = loaded.get(view.name);
  useEffect(() => {
    failed.value = false;
    if (loaded.has(view.name)) return;
    view.load().then(
      (module) => {
        loaded.set(view.name, module.default);
        arrived.value += 1;
      },
      () => (failed.value = true),
    );
  }, [view]);
  void arrived.value;
  if (Show) return <Show />;
  return (
    <>
      <h1 class="hidden">{view.label}</h1>
      {failed.value ? (
        <Failure
          title={`${view.label} could not be loaded`}
          text="The gateway does not answer, or it serves another version of the page."
          retry={() => location.reload()}
        />
      ) : (
        <Skeleton heights={["bar", "fill"]} label={`Loading ${view.label}`} />
      )}
    </>
  );
}
