// Creation of a key; its text is shown once.
import { useSignal } from "@preact/signals";
import { Copy } from "../parts/copy";
import { Dialog } from "../parts/dialog";
import { Problem } from "../parts/states";
import { call, type NewKey, type ShownKey } from "../state/api";
import { models } from "../state/live";

const SCOPES = ["inference", "files", "batches", "jobs", "queue"];
const ROLES = { user: "the scopes below", worker: "takes work from the queue", admin: "everything" } as const;
const DAY_S = 86400;

export function Create({ close }: { close: () => void }) {
  const made = useSignal<ShownKey | null>(null);
  const problem = useSignal("");
  const submit = async (form: FormData) => {
    problem.value = "";
    try {
      made.value = await call<ShownKey>("POST", "/v1/keys", bodyOf(form));
    } catch (error) {
      problem.value = (error as Error).message;
    }
  };
  if (made.value) return <Secret made={made.value} close={close} />;
  return (
    <Dialog title="Create a key" close={close}>
      <form
        class="create"
        onSubmit={(event) => {
          event.preventDefault();
          void submit(new FormData(event.currentTarget));
        }}
      >
        <label>
          Name
          <input name="name" required maxLength={100} placeholder="person or program that uses it" />
        </label>
        <label>
          Role
          <select name="role">
            {Object.entries(ROLES).map(([role, rights]) => (
              <option key={role} value={role}>
                {role}: {rights}
              </option>
            ))}
          </select>
        </label>
        <fieldset>
          <legend>Scopes</legend>
          <div class="row wrap">
            {SCOPES.map((scope) => (
              <label key={scope} class="check">
                <input type="checkbox" name="scopes" value={scope} defaultChecked />
                {scope}
              </label>
            ))}
          </div>
        </fieldset>
        <label>
          Models
          <input name="models" list="known-models" placeholder="all; or names, separated by commas" />
        </label>
        <datalist id="known-models">
          {(models.value ?? []).map((model) => (
            <option key={model} value={model} />
          ))}
        </datalist>
        <div class="pairs">
          <Quota name="requests_per_minute" label="Requests per minute" />
          <Quota name="tokens_per_minute" label="Tokens per minute" />
          <Quota name="tokens_per_day" label="Tokens per day" />
          <label>
            Highest service tier
            <select name="service_tier">
              <option value="default">default</option>
              <option value="flex">flex: waits behind others</option>
              <option value="priority">priority: served first</option>
            </select>
          </label>
          <Quota name="days" label="Expires in days" placeholder="never" />
        </div>
        <Problem text={problem.value} />
        <div class="row end">
          <button type="button" onClick={close}>
            Cancel
          </button>
          <button type="submit" class="main">
            Create
          </button>
        </div>
      </form>
    </Dialog>
  );
}

function Quota({ name, label, placeholder = "no limit" }: { name: string; label: string; placeholder?: string }) {
  return (
    <label>
      {label}
      <input name={name} type="number" min="1" step="1" placeholder={placeholder} />
    </label>
  );
}

function bodyOf(form: FormData): NewKey {
  const number = (name: string) => (form.get(name) ? Number(form.get(name)) : null);
  const days = number("days");
  return {
    name: String(form.get("name")).trim(),
    role: form.get("role") as NewKey["role"],
    scopes: form.getAll("scopes") as NewKey["scopes"],
    models: String(form.get("models"))
      .split(",")
      .map((each) => each.trim())
      .filter(Boolean),
    requests_per_minute: number("requests_per_minute"),
    tokens_per_minute: number("tokens_per_minute"),
    tokens_per_day: number("tokens_per_day"),
    service_tier: (form.get("service_tier") ?? "default") as NewKey["service_tier"],
    expires_in: days === null ? null : days * DAY_S,
  };
}

function Secret({ made, close }: { made: ShownKey; close: () => void }) {
  return (
    <Dialog title={`Key of ${made.name}`} close={close}>
      <p>Copy the key and keep it in a safe place. It is shown once; the gateway stores only its hash.</p>
      <pre class="secret" tabIndex={0}>
        {made.key}
      </pre>
      <div class="row end">
        <Copy text={made.key ?? ""} label="Copy key" />
        <button type="button" class="main" onClick={close}>
          Done
        </button>
      </div>
    </Dialog>
  );
}
