"""Memory of LoRA and QLoRA beside published requirements, and the choice of settings that fit."""

from dataclasses import replace

import pytest

from rondo.base.errors import ConfigError
from rondo.plan.cost.cluster import GPUS
from rondo.plan.finetune import (
    METHODS,
    NF4_BYTES,
    Tuning,
    Wanted,
    adapter_parameters,
    fit,
    largest_microbatch,
    linear_parameters,
    memory,
    seconds_per_step,
)
from rondo.plan.machine import Device
from rondo.plan.sizes.shapes import SHAPES

GB = 1e9
GIB = 2**30
SMALL_BATCH = {"checkpointing": "full", "logits": "chunked", "tokens": 512, "length": 512}

PUBLISHED = {
    # Unsloth's requirements, "absolute minimum" (unsloth.ai/docs, Unsloth requirements).
    ("llama-3-8b", "lora"): 22,
    ("qwen3-14b", "lora"): 33,
    ("qwen3-32b", "lora"): 76,
    ("llama-3-70b", "lora"): 164,
    ("llama-2-7b", "lora"): 19,
    ("qwen3-32b", "qlora"): 26,
    # LLaMA-Factory's hardware table (README), 4 bits.
    ("llama-2-7b", "qlora"): 6,
}
"""GB on one device, small batches."""


@pytest.mark.parametrize(("name", "method"), PUBLISHED)
def test_memory_is_near_published_requirements(name, method):
    tuning = Tuning(method, "bfloat16", "bfloat16", **SMALL_BATCH)
    assert memory(SHAPES[name], tuning).total / GB == pytest.approx(PUBLISHED[name, method], rel=0.15)


def test_qlora_of_65b_fits_a_card_of_48_gb():
    """The claim of the QLoRA paper, with Llama 65B's sizes."""
    llama = replace(SHAPES["llama-2-7b"], layers=80, hidden=8192, heads=64, kv_heads=64, intermediate=22016)
    tuning = Tuning("qlora", "bfloat16", "bfloat16", **SMALL_BATCH)
    assert memory(llama, tuning).total < 48 * GB


def test_weights_of_nf4():
    assert pytest.approx(4.127, abs=1e-3) == NF4_BYTES * 8
    shape = SHAPES["qwen3-8b"]
    assert linear_parameters(shape) + 2 * shape.vocabulary_parameters == pytest.approx(
        shape.parameters, rel=1e-3
    )


def test_adapter_parameters_are_pefts():
    """Of Llama 3 8B with rank 16 over all linear modules: 41,943,040 trainable parameters."""
    assert adapter_parameters(SHAPES["llama-3-8b"], 16) == 41_943_040


@pytest.mark.parametrize("method", METHODS)
def test_every_saving_saves(method):
    shape, base = SHAPES["qwen3-4b"], Tuning(method, "bfloat16", "bfloat16")
    whole = memory(shape, base)
    assert memory(shape, replace(base, checkpointing="full")).total < whole.total
    assert memory(shape, replace(base, logits="chunked")).logits < whole.logits
    assert memory(shape, replace(base, tokens=4096)).activations == pytest.approx(whole.activations / 2)


def test_methods_in_order_of_memory():
    needs = [memory(SHAPES["qwen3-4b"], Tuning(method, "bfloat16", "bfloat16")).total for method in METHODS]
    assert needs == sorted(needs, reverse=True)


def test_largest_microbatch_is_the_last_that_fits():
    shape, tuning, room = SHAPES["qwen3-8b"], Tuning("qlora", "bfloat16", "bfloat16"), 22 * GIB
    found = largest_microbatch(shape, tuning, room)
    assert memory(shape, replace(tuning, tokens=found)).total <= room
    assert memory(shape, replace(tuning, tokens=found + 1)).total > room
    assert largest_microbatch(shape, tuning, GIB) == 0


CHOICES = {
    ("qwen3-0.6b", "h100"): ("full", "none", 8192),
    ("qwen3-0.6b", "rtx-4090"): ("full", "none", 2048),
    ("qwen3-4b", "rtx-4090"): ("lora", "none", 2048),
    ("qwen3-14b", "rtx-4090"): ("qlora", "selective", 2048),
    ("qwen3-8b", "h100"): ("lora", "none", 8192),
}


@pytest.mark.parametrize(("name", "gpu"), CHOICES)
def test_the_fastest_that_fits(name, gpu):
    device = Device.of_gpu(GPUS[gpu])
    found = fit(SHAPES[name], device, Wanted())
    method = CHOICES[name, gpu][0]
    assert (found.tuning.method, found.tuning.checkpointing, found.tuning.tokens) == CHOICES[name, gpu]
    assert found.memory.total <= found.room
    assert list(found.rejected) == list(METHODS[: METHODS.index(method)])


def test_wishes_are_followed():
    wanted = Wanted(("lora",), checkpointing="selective", logits="chunked", tokens=1024, length=1024, rank=4)
    tuning = fit(SHAPES["qwen3-4b"], Device.of_gpu(GPUS["h100"]), wanted).tuning
    assert tuning.method == "lora"
    assert (tuning.checkpointing, tuning.logits, tuning.tokens) == ("selective", "chunked", 1024)


def test_nothing_fits():
    with pytest.raises(
        ConfigError, match=r"the smallest requirement is 27\.\d GiB \(QLoRA, one row of 2,048 tokens\)"
    ):
        fit(SHAPES["qwen3-32b"], Device.of_gpu(GPUS["l4"]), Wanted())


def test_a_cpu_without_matrix_units_keeps_float32_while_it_fits():
    cpu = Device("EPYC", "cpu", 64 * GIB)
    assert fit(SHAPES["qwen3-0.6b"], cpu, Wanted(("lora",))).tuning.dtype == "float32"
    assert fit(SHAPES["qwen3-14b"], cpu, Wanted(("lora",))).tuning.dtype == "bfloat16"


def test_time_of_a_lora_step_is_below_that_of_full_weights():
    shape, device = SHAPES["qwen3-0.6b"], Device.of_gpu(GPUS["h100"])
    full, lora = (
        seconds_per_step(shape, Tuning(method, "bfloat16", "bfloat16"), device, 16384)
        for method in ("full", "lora")
    )
    assert full is not None
    assert lora is not None
    assert 0.5 * full < lora < full
    assert seconds_per_step(shape, Tuning("full"), Device("EPYC", "cpu", GIB), 16384) is None
