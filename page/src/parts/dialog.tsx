// A modal dialog. Escape and a click beside it close it; the focus returns to where it was.
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { Icon } from "./icon";

interface Props {
  title: string;
  close: () => void;
  wide?: boolean;
  children: ComponentChildren;
}

export function Dialog({ title, close, wide, children }: Props) {
  const box = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const before = document.activeElement as HTMLElement | null;
    box.current?.showModal();
    return () => before?.focus();
  }, []);
  return (
    <dialog
      ref={box}
      class={wide ? "wide" : ""}
      aria-label={title}
      onCancel={(event) => (event.preventDefault(), close())}
      onMouseDown={(event) => event.target === box.current && close()}
    >
      <div class="dialog">
        <div class="row">
          <h2>{title}</h2>
          <span class="space" />
          <button type="button" class="quiet" aria-label="Close" onClick={close}>
            <Icon name="close" />
          </button>
        </div>
        {children}
      </div>
    </dialog>
  );
}
