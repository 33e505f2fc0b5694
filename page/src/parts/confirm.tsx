// A question that states the consequence of an action before it is done.
import { signal } from "@preact/signals";
import { Dialog } from "./dialog";

interface Question {
  title: string;
  text: string;
  action: string;
  answer: (yes: boolean) => void;
}

const asked = signal<Question | null>(null);

export function confirmed(title: string, text: string, action: string): Promise<boolean> {
  return new Promise((answer) => (asked.value = { title, text, action, answer }));
}

export function Confirmation() {
  const question = asked.value;
  if (!question) return null;
  const reply = (yes: boolean) => {
    asked.value = null;
    question.answer(yes);
  };
  return (
    <Dialog title={question.title} close={() => reply(false)}>
      <p>{question.text}</p>
      <div class="row end">
        <button type="button" onClick={() => reply(false)}>
          Cancel
        </button>
        <button type="button" class="danger" onClick={() => reply(true)}>
          {question.action}
        </button>
      </div>
    </Dialog>
  );
}
