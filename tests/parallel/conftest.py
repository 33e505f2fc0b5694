import pytest
import torch

from support.ranks import ThreadRanks


@pytest.fixture(scope="session")
def ranks(tmp_path_factory) -> ThreadRanks:
    torch.set_num_threads(1)
    return ThreadRanks(tmp_path_factory.mktemp("ranks"))
