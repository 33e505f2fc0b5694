// Sign-in with an API key.
import { useEffect, useRef } from "preact/hooks";
import { Icon } from "../parts/icon";
import { refusal, setKey } from "../state/api";
import { restart } from "../state/live";

export function SignIn() {
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => field.current?.focus(), []);
  return (
    <form
      class="card signin"
      onSubmit={(event) => {
        event.preventDefault();
        setKey(field.current!.value.trim());
        restart();
      }}
    >
      <h1>
        <Icon name="key" /> Sign in
      </h1>
      {refusal.value && (
        <p class="error" role="alert">
          The gateway refused this key. {refusal.value}
        </p>
      )}
      <label>
        API key
        <input ref={field} type="password" autocomplete="off" placeholder="rk-..." required />
      </label>
      <button class="main" type="submit">
        Sign in
      </button>
      <p class="muted small">
        The admin key of a new gateway is in the file <code>admin-key</code> in RONDO_HOME. For more keys, run{" "}
        <code>rondo keys create NAME</code>. The key is kept until this tab is closed.
      </p>
    </form>
  );
}
