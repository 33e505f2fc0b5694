"""An engine over two folders of weights."""

import pytest

from engine.vllm.played import make
from rondo.engine.config import EngineConfig, VllmConfig
from rondo.models import parse, read_config, save
from support.tiny import tiny_model, tiny_tokenizer


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("played")
    for seed in (0, 1):
        save(tiny_model(seed=seed), folder / str(seed))
    return folder


@pytest.fixture
def engine(folders):
    config = EngineConfig(max_num_seqs=2, max_queued=2, vllm=VllmConfig(adapters=True), max_loaded_adapters=1)
    model = parse(read_config(folders / "0"))
    return make(config, model, folders / "0", model.eos_ids, tiny_tokenizer())
