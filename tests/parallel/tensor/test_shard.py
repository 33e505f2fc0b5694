"""What the ranks say together must be what the whole model says."""

import pytest
import torch
from safetensors.torch import save_file

from rondo.base.errors import ConfigError, ModelError
from rondo.models import Packed, load, new, parse, save
from rondo.models.files.mapping import to_hf
from rondo.parallel.layout.split import heads_of, split
from rondo.parallel.tensor import load as sharded
from support.families import CONFIGS, VOCAB, reference

TOLERANCE = 5e-6
"""Largest difference of a logit in fp32, relative to the largest logit: sums are taken in another order."""


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
    folders = {}

    def make(name: str):
        if name not in folders:
            folders[name] = tmp_path_factory.mktemp("families") / name
            reference(name).save_pretrained(folders[name])
        return folders[name]

    return make


def logits_of(model) -> torch.Tensor:
    tokens = torch.arange(3, 3 + 23) * 7 % VOCAB
    positions = torch.cat([torch.arange(14), torch.arange(9)])
    with torch.inference_mode():
        return model(tokens, positions, Packed([0, 14, 23]))


def difference(ours: torch.Tensor, whole: torch.Tensor) -> float:
    return float((ours - whole).abs().max() / whole.abs().max())


@pytest.mark.parametrize("name", CONFIGS)
def test_two_ranks_are_the_whole_model(name, folder_of, ranks):
    folder = folder_of(name)
    whole = logits_of(load(folder))
    first, second = ranks.run(2, lambda group: logits_of(sharded.load(folder, group)))
    assert difference(first, whole) < TOLERANCE
    assert torch.equal(first, second)


@pytest.mark.parametrize("name", ["llama-biases", "olmo2", "gpt-oss", "deepseek-v3", "qwen3-moe", "phi3"])
@pytest.mark.parametrize("size", [3, 4])
def test_numbers_that_do_not_divide_evenly(name, size, folder_of, ranks):
    """Four heads over three ranks, two key heads over three or four, a vocabulary of 199."""
    folder = folder_of(name)
    whole = logits_of(load(folder))
    for logits in ranks.run(size, lambda group: logits_of(sharded.load(folder, group))):
        assert difference(logits, whole) < TOLERANCE


@pytest.mark.parametrize(
    ("heads", "kv_heads", "size"),
    [(8, 1, 2), (8, 2, 4), (9, 3, 2), (12, 4, 3), (6, 2, 5), (6, 2, 6), (5, 5, 3), (7, 1, 7), (16, 4, 16)],
)
def test_each_query_head_is_on_one_rank_with_its_key_head(heads, kv_heads, size):
    parts = [heads_of(heads, kv_heads, rank, size) for rank in range(size)]
    seen = [head for part in parts for head in range(part.queries.start, part.queries.stop)]
    assert seen == list(range(heads))
    group = heads // kv_heads
    for part in parts:
        assert len(part.queries) % len(part.keys) == 0
        needed = {head // group for head in range(part.queries.start, part.queries.stop)}
        assert needed == set(range(part.keys.start, part.keys.stop))
    assert sum(len(part.keys) / part.sharers for part in parts) == pytest.approx(kv_heads)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"num_attention_heads": 4, "num_key_value_heads": 4}, "4 attention heads"),
        ({"intermediate_size": 7}, "7 feed-forward neurons"),
        ({"vocab_size": 11}, "11 tokens"),
    ],
)
def test_what_cannot_be_divided_is_refused_by_name(changes, says):
    sizes = {"num_attention_heads": 8, "num_key_value_heads": 8, "intermediate_size": 64, "vocab_size": 100}
    more = {"model_type": "llama", "hidden_size": 32, "num_hidden_layers": 1, "max_position_embeddings": 64}
    config = parse({**sizes, **more, **changes})
    with pytest.raises(ConfigError, match=says) as refused:
        split(config, 0, 8)
    assert refused.value.param == "tensor_parallel"


def test_a_rank_maps_its_rows_and_holds_no_more_than_its_part(folder_of, ranks):
    folder = folder_of("mixtral")
    total = sum(p.numel() for p in load(folder).parameters())
    models = ranks.run(2, lambda group: sharded.load(folder, group))
    for model in models:
        assert sum(p.numel() for p in model.parameters()) < 0.55 * total
        # A view of the mapped file: its storage is the file's, and many parameters have the same.
        storages = [
            p.untyped_storage().nbytes() for n, p in model.named_parameters() if n.endswith("q.weight")
        ]
        assert min(storages) >= (folder / "model.safetensors").stat().st_size
        assert not any(p.requires_grad for p in model.parameters())


def test_another_dtype(folder_of, ranks):
    folder = folder_of("qwen2")
    whole = logits_of(load(folder, dtype=torch.bfloat16)).float()
    for logits in ranks.run(2, lambda group: logits_of(sharded.load(folder, group, torch.bfloat16))):
        assert logits.dtype == torch.bfloat16
        assert difference(logits.float(), whole) < 0.05


def test_a_checkpoint_that_does_not_match_is_refused_as_it_is_whole(tmp_path, ranks):
    more = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
    hf = {"model_type": "llama", "vocab_size": 60, "max_position_embeddings": 64, **more}
    model = new(hf)
    save(model, tmp_path / "m")
    tensors = {name: tensor.clone() for name, tensor in to_hf(model)}
    del tensors["model.layers.0.mlp.up_proj.weight"]
    tensors["model.norm.weight"] = torch.zeros(31)
    save_file(tensors, tmp_path / "m" / "model.safetensors")

    def refused(group):
        with pytest.raises(ModelError) as error:
            sharded.load(tmp_path / "m", group)
        return str(error.value)

    with pytest.raises(ModelError) as error:
        load(tmp_path / "m")
    assert ranks.run(2, refused) == [str(error.value)] * 2


def test_a_shard_cannot_be_exported(folder_of, ranks, tmp_path):
    folder = folder_of("llama2")
    (model, _) = ranks.run(2, lambda group: sharded.load(folder, group))
    for export in (lambda: dict(to_hf(model)), lambda: save(model, tmp_path / "out")):
        with pytest.raises(ConfigError, match="rank 0 of 2"):
            export()
    assert not (tmp_path / "out").exists()
