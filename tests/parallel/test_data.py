"""What a rank holds of a model: its parts, and what every rank has whole."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed
from torch.testing._internal.distributed.fake_pg import FakeStore

from rondo.parallel.apply import parallelize
from rondo.parallel.config import LayoutConfig
from rondo.parallel.data import keep_whole, widen
from rondo.parallel.layout.degrees import degrees
from rondo.parallel.pipeline.stage import Stage
from rondo.parallel.ranks.mesh import Mesh
from rondo.parallel.ranks.world import World
from rondo.parallel.tensor.own_part import local_of
from rondo.train.config import TrainConfig
from support.alive import most_bytes_in
from support.tiny import TINY_MLA, tiny_model

RANKS = 8


@pytest.fixture
def rank() -> Iterator[World]:
    """One of ranks that do not exist."""
    torch.distributed.init_process_group("fake", rank=1, world_size=RANKS, store=FakeStore())
    yield World(1, RANKS)
    torch.distributed.destroy_process_group()


def test_a_rank_never_has_the_whole_model_in_the_wider_type(rank: World) -> None:
    """It is given one whose pages all ranks share."""
    model = tiny_model(num_hidden_layers=16).to(torch.bfloat16)
    layer = sum(p.numel() for p in model.layers[0].parameters())
    whole = sum(p.numel() for p in model.parameters())
    ends = whole - 16 * layer
    mesh = Mesh(degrees(LayoutConfig(), RANKS, model.config), rank, torch.device("cpu"))
    most = most_bytes_in(lambda: parallelize(model, mesh, TrainConfig()))
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    own = sum(local_of(p.detach()).numel() for p in model.parameters())
    assert own < 1.2 * whole / RANKS
    assert 4 * own < most < 4 * (own + 1.5 * max(layer, ends)) < 4 * whole


def test_a_tied_weight_is_widened_once_and_what_is_exact_is_left() -> None:
    model = tiny_model(**TINY_MLA | {"tie_word_embeddings": True}).to(torch.bfloat16)
    exact = model.layers[1].mlp.router
    exact.correction = torch.nn.Parameter(torch.ones(8, dtype=torch.float16), requires_grad=False)
    widen(model, torch.float32)
    assert model.head.out.weight is model.embed.weight
    types = {name: p.dtype for name, p in model.named_parameters()}
    assert types.pop("layers.1.mlp.router.correction") == torch.float16
    assert set(types.values()) == {torch.float32}


def test_what_stays_whole_goes_to_where_the_rank_computes() -> None:
    model = tiny_model(**TINY_MLA | {"num_hidden_layers": 3})
    before = dict(model.named_parameters())
    keep_whole(Stage(model), torch.device("meta"))  # as good as a GPU: another place
    found = dict(model.named_parameters())
    assert found.keys() == before.keys()
    moved = [name for name in found if found[name].is_meta]
    assert moved == ["layers.1.mlp.router.correction", "layers.2.mlp.router.correction"]
    assert not any(found[name].requires_grad for name in moved)
    assert all(found[name] is before[name] for name in found.keys() - set(moved))


def test_what_is_there_already_or_nowhere_is_left_alone() -> None:
    for device in ("cpu", "meta"):
        model = tiny_model(**TINY_MLA).to(device)
        before = dict(model.named_parameters())
        keep_whole(Stage(model), torch.device("cpu"))
        assert all(p is before[name] for name, p in model.named_parameters())
