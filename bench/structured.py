"""Answers of a given form: tokens a second of 64 requests that obey a JSON schema, beside 64 that obey nothing.

Both sides are the same engine, model, prompts and number of tokens: no answer that obeys ends before its length, and
the other side ignores ends of text. Two schemas: lists of texts of any characters, where most tokens are allowed, and
lists of records of many short fields, where few are. The grammar is compiled before it is timed.
"""

import os
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from common import THREADS, Report, alternate, arguments, median, say
from rollout import rate
from rondo.client.structured import StructuredOutputsParams
from rondo.client.types import SamplingParams
from rondo.engine.config import EngineConfig
from rondo.engine.entrypoints.llm import LLM
from rondo.models import load
from rondo.text.tokenizer import Tokenizer
from small_model import LARGER, write_small_model

BATCH, PROMPT, ANSWER = 64, 24, 96
MODELS: dict[str, dict[str, Any]] = {"4M": {}, "25M": LARGER}
FIELDS = {f"field{i}": {"enum": ["red", "green", "blue"]} if i % 2 else {"type": "boolean"} for i in range(8)}
RECORD = {"type": "object", "properties": FIELDS, "required": list(FIELDS), "additionalProperties": False}
SCHEMAS: dict[str, dict[str, Any]] = {
    "texts": {"type": "array", "minItems": 100, "items": {"type": "string", "minLength": 100}},
    "records": {"type": "array", "minItems": 100, "items": RECORD},
}


def side(folder: Path, form: StructuredOutputsParams | None) -> Callable[[], float]:
    """Tokens a second."""
    llm = LLM(
        load(folder),
        tokenizer=Tokenizer.load(folder),
        config=EngineConfig(max_num_seqs=BATCH, prefix_cache=False, threads=THREADS),
    )
    rng = random.Random(0)
    prompts = [[rng.randrange(3, 300) for _ in range(PROMPT)] for _ in range(BATCH)]
    params = [
        SamplingParams(
            max_tokens=ANSWER, seed=i, ignore_eos=form is None, detokenize=False, structured_outputs=form
        )
        for i in range(BATCH)
    ]

    def generate() -> int:
        given = [len(output.outputs[0].token_ids) for output in llm.generate(prompts, params)]
        assert given == [ANSWER] * BATCH
        return sum(given)

    generate()
    return lambda: rate(generate)


def main() -> None:
    options = arguments(__doc__.splitlines()[0])
    torch.set_num_threads(THREADS)
    report = Report("structured")
    runs = 3 if options.quick else 9
    with tempfile.TemporaryDirectory() as root:
        for model, changes in MODELS.items():
            folder = write_small_model(Path(root) / model, **changes)
            say(model)
            sides = {
                name: side(folder, StructuredOutputsParams(json=schema)) for name, schema in SCHEMAS.items()
            }
            sides["free"] = side(folder, None)
            rates = {name: median(values) for name, values in alternate(runs, **sides).items()}
            report.ours[f"tokens/s, {model}, free"] = rates["free"]
            for name in SCHEMAS:
                report.ours[f"tokens/s, {model}, {name}"] = rates[name]
                report.ratios[f"{model}, {name}, to free text"] = rates[name] / rates["free"]
    report.notes.append(f"{THREADS} threads, load average {os.getloadavg()[0]:.1f}")
    report.show(options.json)


if __name__ == "__main__":
    main()
