// Registration of a running engine.
import { useSignal } from "@preact/signals";
import { Dialog } from "../parts/dialog";
import { Problem } from "../parts/states";
import { call } from "../state/api";

export function Register({ close }: { close: () => void }) {
  const url = useSignal("");
  const problem = useSignal("");
  const submit = async () => {
    problem.value = "";
    try {
      await call("POST", "/v1/engines", { url: url.value.trim() });
      close();
    } catch (error) {
      problem.value = (error as Error).message;
    }
  };
  return (
    <Dialog title="Register an engine" close={close}>
      <form onSubmit={(event) => (event.preventDefault(), void submit())}>
        <p class="muted">The gateway sends requests to it as soon as its health check succeeds.</p>
        <label>
          URL of a server with OpenAI's API
          <input type="url" required placeholder="http://127.0.0.1:8001" value={url.value} onInput={(event) => (url.value = event.currentTarget.value)} />
        </label>
        <Problem text={problem.value} />
        <div class="row end">
          <button type="button" onClick={close}>
            Cancel
          </button>
          <button type="submit" class="main">
            Register
          </button>
        </div>
      </form>
    </Dialog>
  );
}
