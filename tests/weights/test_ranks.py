"""A learner on four ranks publishes the same bytes as one that has the whole model."""

import json

import pytest
import torch
from safetensors.torch import load_file

from rondo.models.files.mapping import to_hf
from support.launch import RankFailed, fork
from support.tiny import tiny_model
from weights.published_ranks import publish, push_with_a_fault

LAYOUTS = [{"tp": 2, "zero": 3}, {"pp": 2, "tp": 2}]


def test_every_layout_publishes_the_export_bit_for_bit(tmp_path):
    reports = fork(publish, 4, tmp_path, LAYOUTS, imports=["torch.distributed.fsdp"])
    expected = dict(to_hf(tiny_model()))
    for number in range(len(LAYOUTS)):
        [file] = (tmp_path / str(number)).glob("*/0/model.safetensors")
        found = load_file(file)
        assert found.keys() == expected.keys()
        for name, tensor in expected.items():
            assert torch.equal(found[name], tensor), name
        sizes = [each[number] for each in reports]
        assert {nbytes for nbytes, _ in sizes} == {sum(t.nbytes for t in expected.values())}
        assert sum(written for _, written in sizes) == sizes[0][0], "every byte is written once"


@pytest.mark.parametrize("fault", ["failed", "killed"])
def test_a_rank_that_ends_during_a_push_ends_it_on_every_rank(tmp_path, fault):
    if fault == "killed":
        with pytest.raises(RankFailed):
            fork(push_with_a_fault, 4, tmp_path, fault)
    else:
        fork(push_with_a_fault, 4, tmp_path, fault)
    others = range(3 if fault == "killed" else 4)
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in others]
    for rank, (error, seconds, _) in enumerate(found):
        if fault == "killed":
            assert "Unavailable: another rank of the learner ended" in error, error
        elif rank < 3:
            assert "another rank could not write version 2: RuntimeError: out of memory" in error
        assert seconds < 30
    assert found[0][2] == (1 if fault == "killed" else 2), "the engine continues with its version"
