"""What `rondo doctor` measures: the operations as they are, and limits that mean something."""

from dataclasses import replace

import pytest
import torch

from rondo.ops.dispatch import use_reference
from rondo.ops.measure import probe
from rondo.ops.measure.limits import HardwareLimits, measure_limits
from rondo.ops.native.build import ahead, build

CASES = {f"{case.operation} {case.dtype}": case for case in probe.cases((2,), streamed=1)}


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.inference_mode():
        yield


@pytest.mark.parametrize("name", CASES)
def test_every_case_computes_and_its_versions_agree(name):
    case = CASES[name]
    given = case.given[0]
    ours, reference = case.op(*given), case.op.reference(*given)
    plain = reference if case.plain is None else case.plain(*given)
    if case.operation == "draw a token":
        logits, temperatures, draws, _ = given
        probs = torch.softmax(logits.double() / temperatures[:, None], dim=-1)
        for tokens, _ in (ours, reference):
            # Sums in fp32 round: where one token ends and the next begins may differ from fp64 by a little.
            own, end = (x.gather(1, tokens[:, None]).squeeze(1) for x in (probs, probs.cumsum(-1)))
            assert ((end - own - 1e-5 <= draws) & (draws <= end + 1e-5)).all()
        return
    for result in (ours, plain):
        assert result.shape == reference.shape
        difference = (result.float() - reference.float()).abs().max()
        # In bf16 the reference rounds more often: what attention weighs by, too.
        assert difference <= 0.04 * reference.float().abs().max()


@pytest.mark.skipif(not build.compiler(), reason="no C compiler here: install gcc to test what it gives")
def test_the_version_that_runs_is_named():
    case = CASES["rms norm bf16"]
    assert case.version() == (f"native, {ahead.runs('fp32')}", "compiled for this CPU")
    with use_reference():
        assert case.version() == ("reference", "RONDO_OPS=reference")


def test_without_a_compiler_it_is_said_why(monkeypatch):
    case = CASES["rms norm fp32"]
    monkeypatch.setattr(case.op, "_fast", [])
    monkeypatch.setattr(ahead, "compiler", list)
    version, why = case.version()
    assert version == "reference"
    assert "Install gcc" in why


def test_what_is_given_comes_from_memory():
    """More of it than a cache holds: each call has tensors of its own."""
    for case in probe.cases((1,), streamed=3 << 20):
        size = sum({x.data_ptr(): x.nbytes for given in case.given for x in _tensors(given)}.values())
        assert size >= 3 << 20, case


def _tensors(given):
    for x in given:
        if isinstance(x, torch.Tensor):
            yield x
        elif hasattr(x, "data"):
            yield x.data


def test_a_limit_is_of_what_is_multiplied():
    limits = HardwareLimits(read=100.0, flops={"fp32": 10.0, "bf16": 1.0, "int16": 20.0, "int8": 40.0})
    for name, rate in (("linear bf16", 10), ("quantized linear int4", 20), ("quantized linear w8a8", 40)):
        case = replace(CASES[name], read=1.0, flops=1000.0)
        assert case.limit(limits) == 1000 / rate
        assert replace(case, read=1e6).limit(limits) == 1e4


def test_a_share_is_a_positive_number():
    limits = measure_limits(0.05)
    for case in CASES.values():
        assert case.limit(limits) / case.seconds(0.0) > 0
