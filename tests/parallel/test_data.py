"""What ranks hold whole beside what FSDP divides among them."""

import torch

from rondo.parallel.data import keep_whole
from rondo.parallel.stage import Stage
from support.tiny import TINY_MLA, tiny_model


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
