"""lm-evaluation-harness over `/v1/completions`: its log-likelihoods, bits per byte and answers are transformers'."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from real.clients.plain import KEY
from support.peers import run_peer
from support.served import Served

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

LENGTH = 64
"""`max_length`: a long page is cut into windows of two tokens less, so that one of context and one of answer fit in."""
ANSWER = 16
PAGES = [
    "The server answers requests. " * 12,
    "How is the weather in Paris, and how is it in Rome? It is sunny, ümläut.",
]
QUESTIONS = [
    {"question": "How is the weather?", "answer": 0},
    {"question": "Where is it sunny?", "answer": 1},
]


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def model(folder: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def write_tasks(folder: Path) -> None:
    """YAML's superset of JSON is enough for a task."""
    data = {"pages": [{"page": page} for page in PAGES], "questions": QUESTIONS}
    for name, rows in data.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def task(name: str, rows: str, metric: str, **more: Any) -> None:
        source = {"dataset_path": "json", "test_split": "test"}
        source["dataset_kwargs"] = {"data_files": {"test": str(folder / f"{rows}.jsonl")}}
        body = {"task": name, "metric_list": [{"metric": metric}]} | source | more
        (folder / f"{name}.yaml").write_text(json.dumps(body))

    task(
        "rolling",
        "pages",
        "bits_per_byte",
        output_type="loglikelihood_rolling",
        doc_to_text="",
        doc_to_target="{{page}}",
    )
    asked = {"doc_to_text": "{{question}}", "doc_to_target": "answer"}
    choices = ["sunny", "rainy and cold"]
    task("choices", "questions", "acc", output_type="multiple_choice", doc_to_choice=choices, **asked)
    limits = {"until": ["\n\n\n"], "max_gen_toks": ANSWER}
    task(
        "answers", "questions", "exact_match", output_type="generate_until", generation_kwargs=limits, **asked
    )


def evaluate(
    served: Served, folder: Path, **arguments: object
) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """The metrics of each task, and its samples."""
    write_tasks(folder)
    arguments |= {"model": "tiny", "base_url": f"{served.url}/v1/completions", "max_length": LENGTH}
    arguments |= {"num_concurrent": 2, "max_retries": 1, "timeout": 60}
    options = {
        "model": "local-completions",
        "model_args": ",".join(f"{name}={value}" for name, value in arguments.items()),
        "tasks": "rolling,choices,answers",
        "batch_size": 3,
        "include_path": folder,
        "output_path": folder / "out",
    }
    flags = [f"--{name}={value}" for name, value in options.items()]
    own = {"OPENAI_API_KEY": KEY, "HF_HOME": str(folder / "home")}
    run_peer("lm_eval", "-m", "lm_eval", "run", "--log_samples", *flags, seconds=200, **own)
    [results] = (folder / "out").glob("*/results_*.json")
    samples = {
        name: [
            json.loads(line) for file in (folder / "out").glob(f"*/samples_{name}_*") for line in file.open()
        ]
        for name in ("rolling", "choices", "answers")
    }
    return json.loads(results.read_text())["results"], samples


def scores(model: PreTrainedModel, ids: list[int], count: int) -> tuple[float, bool]:
    """The log-likelihood of the last `count` tokens after the others, and whether each is the likeliest."""
    with torch.no_grad():
        logprobs = model(torch.tensor([ids])).logits[0, -count - 1 : -1].log_softmax(-1)
    wanted = torch.tensor(ids[-count:])
    return logprobs.gather(1, wanted[:, None]).sum().item(), bool((logprobs.argmax(1) == wanted).all())


def rolling(model: PreTrainedModel, ids: list[int], prefix: int) -> float:
    """The log-likelihood of all tokens, in disjoint windows of which each has as much context as fits."""
    size = LENGTH - 2
    whole = [prefix, *ids]
    ends = [(start, min(start + size, len(ids))) for start in range(0, len(ids), size)]
    return sum(scores(model, whole[max(0, end - size) : end + 1], end - start)[0] for start, end in ends)


@pytest.mark.parametrize("backend", ["huggingface", "remote"])
def test_scores_are_transformers(
    served: Served,
    folder: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    backend: str,
    tmp_path: Path,
) -> None:
    """The remote tokenizer is the server's: `/tokenizer_info`, `/tokenize` and `/detokenize`."""
    own = {"tokenizer": folder} if backend == "huggingface" else {"auth_token": KEY}
    results, samples = evaluate(served, tmp_path, tokenizer_backend=backend, **own)

    expected = [
        rolling(model, tokenizer.encode(page, add_special_tokens=False), tokenizer.eos_token_id)
        for page in PAGES
    ]
    found = {sample["doc"]["page"]: float(sample["resps"][0][0]) for sample in samples["rolling"]}
    assert [found[page] for page in PAGES] == pytest.approx(expected, rel=1e-5)
    size = sum(len(page.encode()) for page in PAGES)
    assert results["rolling"]["bits_per_byte,none"] == pytest.approx(
        -sum(expected) / size / math.log(2), rel=1e-5
    )

    compared = 0
    for sample in samples["choices"]:
        for given, [[score, greedy]] in zip(sample["arguments"].values(), sample["resps"], strict=True):
            before = tokenizer.encode(given["arg_0"], add_special_tokens=False)
            ids = tokenizer.encode(given["arg_0"] + given["arg_1"], add_special_tokens=False)
            expected_score, expected_greedy = scores(model, ids, len(ids) - len(before))
            assert float(score) == pytest.approx(expected_score, rel=1e-5)
            assert greedy == str(expected_greedy)
            compared += 1
    assert compared == 4

    for sample in samples["answers"]:
        prompt = tokenizer(sample["doc"]["question"], add_special_tokens=False, return_tensors="pt")
        ids = model.generate(**prompt, max_new_tokens=ANSWER, do_sample=False)[
            0, prompt["input_ids"].shape[1] :
        ]
        assert sample["resps"] == [[tokenizer.decode(ids, skip_special_tokens=True)]]
    assert len(samples["answers"]) == len(QUESTIONS)
