"""What stages of a pipeline have of a decoder."""

import pytest

from rondo.base.errors import ConfigError
from rondo.models.adapters.lora import attach_lora
from rondo.models.adapters.lora_config import LoraSpec
from rondo.parallel.pipeline.pieces import check_learning
from support.tiny import tiny_model


def test_a_piece_in_which_nothing_learns_is_named() -> None:
    model = tiny_model(num_hidden_layers=4)
    check_learning(model, [range(2), range(2, 4)])
    attach_lora(model, LoraSpec(r=2, targets=r".*layers\.3\..*"))
    with pytest.raises(ConfigError, match=r"layers 0 to 1 .* nothing in them learns") as error:
        check_learning(model, [range(2), range(2, 4)])
    assert error.value.param == "train.layout.pp"
