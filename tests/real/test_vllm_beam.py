"""Beam search finds what vLLM's own finds, in the same order. Of several end tokens vLLM's search knows one alone."""

import json
from pathlib import Path
from typing import Any

import pytest

from rondo import BeamSearchParams
from rondo.engine.config import EngineConfig
from rondo.engine.llm import LLM
from support.peers import run_peer
from support.vllm import write_folders

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

PROMPTS = [[5, 6, 7], [40, 41, 42, 43], list(range(100, 130))]
SEARCHES: list[dict[str, Any]] = [
    {"beam_width": 1, "max_tokens": 8},
    {"beam_width": 4, "max_tokens": 12},
    {"beam_width": 4, "max_tokens": 12, "length_penalty": 0.0},
    {"beam_width": 8, "max_tokens": 10, "length_penalty": 2.0},
    {"beam_width": 3, "max_tokens": 16, "ignore_eos": True},
]


def test_the_same_beams(tmp_path: Path) -> None:
    folder = write_folders(tmp_path) / "0"
    script = Path(__file__).with_name("_vllm_beams.py")
    asked = {"folder": str(folder), "prompts": PROMPTS, "searches": SEARCHES}
    theirs = json.loads(run_peer("vllm", script, asked=json.dumps(asked), seconds=500))
    llm = LLM(folder, config=EngineConfig(dtype="float32"), eos_ids=[theirs["end"]])
    for search, beams in zip(SEARCHES, theirs["found"], strict=True):
        ours = llm.beam_search(PROMPTS, BeamSearchParams(**search))
        for own, their in zip(ours, beams, strict=True):
            assert [beam.tokens for beam in own.sequences] == [tokens for tokens, _ in their]
            totals = [beam.cum_logprob for beam in own.sequences]
            assert totals == pytest.approx([total for _, total in their], abs=1e-3)
