"""A model from nothing: what its config must say."""

import math
import time
from typing import Any

import pytest

from rondo.base.errors import ModelError
from rondo.models import new, parse
from support.tiny import tiny_config


@pytest.mark.parametrize("spread", [0, -1, math.nan, math.inf, "0.02", True, None, 10**400])
def test_the_spread_of_the_weights_is_a_number_above_0(spread: Any):
    with pytest.raises(ModelError, match="initializer_range is") as caught:
        new(tiny_config(initializer_range=spread))
    assert caught.value.param == "initializer_range"


@pytest.mark.parametrize("layers", [4097, 2**31, 10**30])
@pytest.mark.parametrize("family", ["qwen3", "llama", "gemma2", "deepseek_v3", "gpt_oss"])
def test_an_absurd_number_of_layers_is_refused_at_once(family: str, layers: int):
    begin = time.process_time()
    with pytest.raises(ModelError, match=f"num_hidden_layers is {layers}, more than") as caught:
        parse(tiny_config(model_type=family, num_hidden_layers=layers))
    assert caught.value.param == "num_hidden_layers"
    assert time.process_time() - begin < 5
