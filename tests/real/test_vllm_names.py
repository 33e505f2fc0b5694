"""vLLM's own source says what its metrics are called, and where their buckets lie: ours have the same."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from rondo.engine.core import EngineCore
from rondo.engine.metrics import exposition
from rondo.engine.metrics.counters import EngineMetrics
from support.peers import peer_python
from support.tiny import tiny_model

pytestmark = pytest.mark.real

ELSEWHERE = {
    "corrupted_requests": "counted as request_success{finished_reason=error}",
    "watermark_requests": "of a feature that is not here",
    "num_requests_kv_fetch_by_stage": "of a feature that is not here",
    "external_prefix_cache_queries": "of a feature that is not here",
    "external_prefix_cache_hits": "of a feature that is not here",
    "prompt_tokens_cached_by_source": "there is one source: see prompt_tokens_by_source",
    "mm_cache_queries": "of a feature that is not here",
    "mm_cache_hits": "of a feature that is not here",
    "kv_block_lifetime_seconds": "off by default there",
    "kv_block_idle_before_evict_seconds": "off by default there",
    "kv_block_reuse_gap_seconds": "off by default there",
}
BUCKETS = {
    "REQUEST_LATENCY_BUCKETS": exposition.LATENCY,
    "TIME_TO_FIRST_TOKEN_BUCKETS": exposition.FIRST_TOKEN,
    "INTER_TOKEN_LATENCY_BUCKETS": exposition.BETWEEN_TOKENS,
    "ITERATION_TOKENS_BUCKETS": exposition.STEP_TOKENS,
    "REQUEST_PARAMS_N_BUCKETS": exposition.SAMPLES,
    "REQUEST_NUM_PREEMPTIONS_BUCKETS": exposition.PREEMPTIONS,
}


@pytest.fixture(scope="module")
def source() -> Path:
    vllm = peer_python("vllm").parents[1]
    return next(vllm.glob("lib/python*/site-packages/vllm/v1/metrics"))


def test_every_name_is_ours_too(source: Path) -> None:
    theirs = set(re.findall(r'"vllm:(\w+)"', (source / "loggers.py").read_text()))
    ours = {
        family.name.removeprefix("rondo:") for family in EngineMetrics(EngineCore(tiny_model())).collect()
    }
    assert len(theirs) > 30
    assert theirs - ours - set(ELSEWHERE) == set()


def test_their_bounds_are_among_ours(source: Path) -> None:
    code = "import json, runpy, sys; print(json.dumps({k: v for k, v in runpy.run_path(sys.argv[1]).items() if k in "
    code += f"{list(BUCKETS)}}}))"
    command = [str(peer_python("vllm")), "-c", code, str(source / "buckets.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    for name, bounds in json.loads(done.stdout).items():
        assert set(bounds) <= set(BUCKETS[name]), name
