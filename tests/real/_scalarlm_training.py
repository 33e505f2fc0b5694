"""ScalarLM's client trains and asks the model, against the URL in the first argument. Prints JSON."""

import json
import os
import sys
import time

# isort: off
from scalarlm import SupermassiveIntelligence  # first: masint's modules import it while they load
import masint.engines.cray.submit_training_job as submitting
# isort: on

llm = SupermassiveIntelligence(api_url=sys.argv[1])
facts = [{"input": f"What is {n} + {n}?", "output": f"The answer is {n + n}."} for n in (1, 2, 3)]
arguments = {
    "max_steps": int(sys.argv[2]),
    "learning_rate": 3e-3,
    "adapter_type": "lora",
    "lora_config": {"r": 16},
}


def failure(**wrong: object) -> str:
    try:
        llm.train(facts, train_args=dict(wrong))
    except Exception as error:
        return str(error)
    return ""


def finished(name: str) -> dict:
    deadline = time.monotonic() + 3000
    while time.monotonic() < deadline:
        job = llm.get_training_job(name)
        if job["job_status"]["status"] not in ("QUEUED", "TRAINING") and (
            job["deployed"] or job["job_status"]["status"] != "COMPLETED"
        ):
            return job
        time.sleep(0.5)
    raise TimeoutError(name)


begun = llm.train(facts, train_args=dict(arguments))
name = begun["job_status"]["model_name"]
job = finished(os.path.basename(begun["job_status"]["job_directory"]))
submitting._SINGLE_POST_THRESHOLD, submitting._UPLOAD_CHUNK_SIZE = 10, 100
in_pieces = llm.train(facts, train_args=dict(arguments))
other = llm.train(facts, train_args={"max_steps": 10_000})["job_status"]["model_name"]
found = {
    "name": name,
    "job": job,
    "same": in_pieces["job_status"]["job_id"] == job["job_status"]["job_id"],
    "answers": llm.generate(prompts=[each["input"] for each in facts], model_name=name, max_tokens=12),
    "wrong": failure(learning_rate=-1.0),
    "unknown": failure(max_step=3),
    "models": llm.list_models(),
    "gpus": llm.get_gpu_count(),
    "nodes": llm.get_node_count(),
    "cancelled": llm.cancel(other),
    "deleted": llm.delete(other),
}
print(json.dumps(found))
