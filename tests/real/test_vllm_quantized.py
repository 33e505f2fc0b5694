"""vLLM loads what `rondo model quantize` writes, and computes what we do with it."""

import json
import random
from pathlib import Path

import numpy as np
import pytest

from rondo import SamplingParams
from rondo.engine.config import EngineConfig
from rondo.engine.llm import LLM
from rondo.models.quantized.folder import quantize_folder
from rondo.models.quantized.making import Recipe
from rondo.models.quantized.methods import Method
from support.peers import run_peer
from support.vllm import write_folders

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]


EXACT = any(name in Path("/proc/cpuinfo").read_text() for name in ("avx512_vnni", "avx_vnni"))
"""Elsewhere int8 products of the library that vLLM uses on a CPU may overflow, as its documentation says: then vLLM is
0.35 from its own unquantized model, where we are 0.04 from it."""
APART = {"int8": 0.1 if EXACT else 0.6, "fp8": 0.15}
"""Root mean square. vLLM rounds what fp8 weights are multiplied by to fp8 too; we do not."""


@pytest.mark.parametrize("method", ["int8", "fp8"])
def test_nearly_the_same_log_probabilities(method: Method, tmp_path: Path) -> None:
    """4-bit weights are not in this: vLLM's build for CPUs refuses them for lack of an operation."""
    folder = write_folders(tmp_path) / "0"
    quantize_folder(folder, tmp_path / method, Recipe(method))
    rng = random.Random(0)
    prompts = [rng.choices(range(5, 290), k=length) for length in (9, 40, 100)]
    script = Path(__file__).with_name("_vllm_logprobs.py")
    asked = {"folder": str(tmp_path / method), "prompts": prompts}
    answers = json.loads(run_peer("vllm", script, asked=json.dumps(asked), seconds=500))
    llm = LLM(tmp_path / method, config=EngineConfig(dtype="float32"))
    ours = llm.generate(prompts, SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0))
    own = [entry[0][1] for output in ours for entry in output.prompt_logprobs or [] if entry is not None]
    theirs = [logprob for prompt in answers for logprob in prompt]
    assert len(own) == len(theirs) == sum(map(len, prompts)) - len(prompts)
    assert np.sqrt(np.mean(np.square(np.subtract(own, theirs)))) < APART[method]
