import pytest

from support.ranks import ThreadRanks


@pytest.fixture(scope="session")
def ranks(tmp_path_factory) -> ThreadRanks:
    return ThreadRanks(tmp_path_factory.mktemp("ranks"))
