"""Fine-tuning, graders and evals with the client of OpenAI, which reads the gateway's URL from the environment."""

import json
import time

import openai

client = openai.OpenAI(max_retries=0)
out: dict[str, object] = {"version": openai.__version__}


def ended(look, states: tuple[str, ...]):
    deadline = time.monotonic() + 200
    while (found := look()).status not in states:
        assert time.monotonic() < deadline, found
        time.sleep(0.1)
    return found


record = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
file = client.files.create(file=("data.jsonl", json.dumps(record).encode()), purpose="fine-tune")
job = client.fine_tuning.jobs.create(
    model="base", training_file=file.id, suffix="mine", method={"type": "supervised"}
)
job = ended(lambda: client.fine_tuning.jobs.retrieve(job.id), ("succeeded", "failed", "cancelled"))
out["job"] = [job.status, job.trained_tokens, len(job.result_files)]
out["checkpoints"] = [each.step_number for each in client.fine_tuning.jobs.checkpoints.list(job.id)]
out["events"] = sorted({each.type for each in client.fine_tuning.jobs.list_events(job.id)})

match = {
    "type": "string_check",
    "name": "match",
    "input": "{{ sample.output_text }}",
    "reference": "{{ item.answer }}",
    "operation": "eq",
}
graders = client.fine_tuning.alpha.graders
out["validated"] = graders.validate(grader=match).grader.name
out["reward"] = graders.run(grader=match, model_sample="A", item={"answer": "A"}).reward

schema = {"type": "object", "properties": {"question": {"type": "string"}}, "required": ["question"]}
made = client.evals.create(
    name="capitals",
    data_source_config={"type": "custom", "item_schema": schema, "include_sample_schema": True},
    testing_criteria=[match],
)
items = [{"item": {"question": question, "answer": "A"}} for question in ("a", "b")]
source = {
    "type": "completions",
    "model": "m",
    "input_messages": {"type": "template", "template": [{"role": "user", "content": "{{ item.question }}"}]},
    "source": {"type": "file_content", "content": items},
}
run = client.evals.runs.create(made.id, data_source=source)
run = ended(lambda: client.evals.runs.retrieve(run.id, eval_id=made.id), ("completed", "failed", "canceled"))
out["counts"] = run.result_counts.model_dump()
rows = client.evals.runs.output_items.list(run.id, eval_id=made.id)
out["items"] = [each.status for each in rows]
out["listed"] = made.id in [each.id for each in client.evals.list()]
out["deleted"] = client.evals.delete(made.id).deleted
print(json.dumps(out))
